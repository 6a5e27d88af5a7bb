"""A TensorFlow-1 cluster program: workers build one graph each, and share its variables on the parameter server."""

from __future__ import annotations

import json
import os

import tensorflow as tf  # noqa: TID253 (a training program)

STEPS = int(os.environ.get("STEPS", "300"))
FOLDER = os.environ.get("AIRFLOW_TF_CHECKPOINT_DIR", "checkpoints")

config = json.loads(os.environ["TF_CONFIG"])
job, index = config["task"]["type"], config["task"]["index"]
cluster = tf.train.ClusterSpec(config["cluster"])
server = tf.train.Server(cluster, job_name=job, task_index=index)
if job == "ps":
    server.join()

workers = cluster.num_tasks("worker") + (cluster.num_tasks("chief") if "chief" in cluster.jobs else 0)
is_chief = job == "chief" or ("chief" not in cluster.jobs and index == 0)
with tf.device(tf.train.replica_device_setter(cluster=cluster, worker_device=f"/job:{job}/task:{index}")):
    weights = tf.get_variable("weights", [4], initializer=tf.zeros_initializer())
    x = tf.random_normal([32, 4])
    y = tf.reduce_sum(x * [1.0, 2.0, 3.0, 4.0], axis=1)
    loss = tf.reduce_mean(tf.square(tf.reduce_sum(x * weights, axis=1) - y))
    step = tf.train.get_or_create_global_step()
    optimizer = tf.train.GradientDescentOptimizer(0.05)
    hooks = [tf.train.StopAtStepHook(last_step=STEPS)]
    if os.environ.get("SYNC_REPLICAS"):
        optimizer = tf.train.SyncReplicasOptimizer(optimizer, workers, total_num_replicas=workers)
    train = optimizer.minimize(loss, global_step=step)
    if os.environ.get("SYNC_REPLICAS"):
        hooks.append(optimizer.make_session_run_hook(is_chief))

mine = 0
with tf.train.MonitoredTrainingSession(
    master=server.target,
    is_chief=is_chief,
    checkpoint_dir=FOLDER if is_chief else None,
    hooks=hooks,
    save_checkpoint_steps=50,
) as session:
    while not session.should_stop():
        _, found, number = session.run([train, weights, step])
        mine += 1
print("result", job, index, mine, int(number), found.tolist(), flush=True)
