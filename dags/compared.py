"""Two declarations as groups of one DAG that is written by hand, and a task that compares what they came to."""

from __future__ import annotations

from pathlib import Path

from airflow.sdk import DAG, task

from airflow_tf.pipeline import load_task_group

FOLDER = Path(__file__).with_suffix("")

# [START groups]
with DAG("compared", schedule=None, tags=["example", "airflow_tf"]):

    @task
    def compare(ti=None) -> str:
        """Name the training with the smaller error, and print both."""
        errors = {
            name: ti.xcom_pull(task_ids=f"{name}.train", map_indexes=0)["metrics"]["mae"] for name in ("slow", "fast")
        }
        print(errors)
        return min(errors, key=errors.get)

    groups = [load_task_group(FOLDER / f"{name}.yaml", name) for name in ("slow", "fast")]
    groups >> compare()
# [END groups]
