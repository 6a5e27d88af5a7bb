"""A gang that trains in step, used by both sides of a benchmark: one that is lost takes the others along.

Ends, with a last checkpoint, once a file ``finish`` appears among the marks of the benchmark.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import tensorflow as tf  # noqa: TID253 (a user's program)

MARKS = Path(os.environ["BENCH_MARKS"])
FOLDER = os.environ["AIRFLOW_TF_CHECKPOINT_DIR"]
STEPS_PER_CHECKPOINT = 5


def main() -> None:
    """Take steps, with a checkpoint now and then, and leave the time of each step as ``<marks>/<replica>-<pid>``."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        weight = tf.Variable(tf.zeros((4, 1)))
        step = tf.Variable(0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)
    checkpoint = tf.train.Checkpoint(weight=weight, step=step)
    manager = tf.train.CheckpointManager(checkpoint, FOLDER, max_to_keep=2)
    latest = os.environ.get("AIRFLOW_TF_RESUME_FROM") or manager.latest_checkpoint
    if latest:
        checkpoint.restore(latest).assert_existing_objects_matched()

    @tf.function  # type: ignore[untyped-decorator]
    def train(finish: tf.Tensor) -> tf.Tensor:
        def one() -> tf.Tensor:
            context = tf.distribute.get_replica_context()
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum((tf.ones((8, 4)) @ weight - 1.0) ** 2)
            weight.assign_sub(0.001 * context.all_reduce("sum", tape.gradient(loss, weight)))
            step.assign_add(1)
            return context.all_reduce("sum", tf.identity(finish))

        return strategy.experimental_local_results(strategy.run(one))[0]

    with (MARKS / f"{os.environ['AIRFLOW_TF_REPLICA']}-{os.getpid()}").open("a") as marks:
        wanted = 0.0
        while not wanted:  # all see the same sum, so all end with the same step
            wanted = float(train(tf.constant(float((MARKS / "finish").exists()))))
            number = int(step.numpy())
            marks.write(f"{number} {time.time()!r}\n")
            marks.flush()
            if wanted or number % STEPS_PER_CHECKPOINT == 0:
                manager.save(checkpoint_number=number)
            time.sleep(0.05)


main()
