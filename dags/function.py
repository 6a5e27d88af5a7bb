"""A training function in the DAG file itself: it runs in the training interpreter, on devices of its own."""

from airflow.sdk import dag, task


@dag(schedule=None, tags=["example", "airflow_tf"])
def function():
    # [START function]
    @task.tensorflow(devices=1, kind="cpu", session_config={"intra_op_parallelism_threads": 1})
    def fit(rate: float, steps: int):
        import tensorflow as tf

        weight = tf.Variable(0.0)
        for _ in range(steps):
            with tf.GradientTape() as tape:
                loss = (weight - 3.0) ** 2
            weight.assign_sub(rate * tape.gradient(loss, weight))
        return {"weight": weight, "loss": loss}

    @task
    def best(results):
        return min(results, key=lambda result: result["metrics"]["loss"])["metrics"]

    best(fit.partial(steps=100).expand(rate=[0.01, 0.1]))  # each instance waits for a device of its own
    # [END function]


function()
