"""The queue-runner program of TensorFlow 1, unchanged, on files that a DAG stages from a real HDFS."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_tf.storage.base import Uri
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.registry import open_file_system
from airflow_tf.testing.hdfs import HdfsCluster
from tests.airflow.home import AirflowHome

pytestmark = [pytest.mark.airflow, pytest.mark.hdfs, pytest.mark.tensorflow]

PROGRAM = """
import os
import tensorflow as tf

folder = os.environ["AIRFLOW_TF_INPUT_TRAIN"]
filename_queue = tf.train.string_input_producer([os.path.join(folder, name) for name in ("file0.csv", "file1.csv")])
reader = tf.TextLineReader()
key, value = reader.read(filename_queue)
record_defaults = [[1], [1], [1], [1], [1]]
col1, col2, col3, col4, col5 = tf.decode_csv(value, record_defaults=record_defaults)
features = tf.pack([col1, col2, col3, col4])

with tf.Session() as sess:
    coord = tf.train.Coordinator()
    threads = tf.train.start_queue_runners(coord=coord)
    seen = {}
    for i in range(1200):
        example, label = sess.run([features, col5])
        seen[tuple(example.tolist())] = int(label)
    coord.request_stop()
    coord.join(threads)
right = sum(sum(example) == label for example, label in seen.items())
print("steps", i + 1, "rows", len(seen), "right", right, flush=True)
"""

DECLARATION = """
dag_id: queue
schedule: null
inputs:
  train:
    uri: {uri}
    check: {{format: csv, columns: [int32, int32, int32, int32, int32], full: true}}
devices: {{count: 1, kind: cpu}}
train: {{entrypoint: queue/train.py, api: v1}}
checkpoints: {{aggregate: none}}
"""


@pytest.mark.usefixtures("no_processes_left")
def test_1200_single_rows_are_read_by_queue_runners_from_staged_files(
    home: AirflowHome, hdfs_cluster: HdfsCluster, tmp_path: Path
) -> None:
    uri = f"{hdfs_cluster.uri}/queue"
    hdfs = open_file_system(Uri.parse(uri), StorageOptions.from_uri(uri))
    hdfs.make_dirs("/queue")
    for part in range(2):
        rows = [f"{n},{part},{2 * n},3,{3 * n + part + 3}\n" for n in range(300)]
        hdfs.write(f"/queue/file{part}.csv", ["".join(rows).encode()])
    hdfs.write("/queue/_SUCCESS", [b""])
    dags = tmp_path / "dags"
    (dags / "queue").mkdir(parents=True)
    (dags / "queue" / "train.py").write_text(PROGRAM)
    (dags / "queue.tf.yaml").write_text(DECLARATION.format(uri=uri))
    (dags / "queue.py").write_text("from airflow_tf.pipeline import load_dags\n\nload_dags(globals(), __file__)\n")
    (dags / ".airflowignore").write_text("queue/\n")
    alone = AirflowHome(home.folder, home.store, {"AIRFLOW__CORE__DAGS_FOLDER": str(dags)})
    shown = alone.run("dags", "test", "queue").stdout
    assert "steps 1200 rows 600 right 600" in shown, shown[-3000:]
