"""TensorFlow writes, we average, TensorFlow restores."""

from __future__ import annotations

import json
import shutil

import pytest

from airflow_tf.core.checkpoint import BundleReader, latest_complete, verify
from airflow_tf.core.checkpoint.average import average
from airflow_tf.core.errors import CheckpointError

pytestmark = pytest.mark.tensorflow


def test_tensorflow_restores_the_average_and_it_is_the_mean(tensorflow_checkpoints, run_tensorflow):
    root = tensorflow_checkpoints
    for name in ("keras", "odd", "big", "v1", "types"):
        latest = [latest_complete(root / f"replica-{seed}" / name) for seed in (1, 2)]
        assert [found.skipped for found in latest] == [(), ()]
        calls = []
        report = average(
            [found.prefix for found in latest],
            str(root / "average" / name / "ckpt"),
            on_progress=lambda done, total, calls=calls: calls.append((done, total)),
        )
        assert calls[-1] == (report.read_bytes, report.read_bytes)
        assert json.loads(json.dumps(report.to_json()))["averaged"] == report.averaged > 0
        verify(report.destination)
        if name == "keras":
            dropped = str(root / "average" / "inference" / "ckpt")
            assert average([found.prefix for found in latest], dropped, optimizer="drop").dropped > 0
    shutil.copytree(root / "replica-1" / "saved", root / "average" / "saved")
    saved = [str(root / f"replica-{seed}" / "saved" / "variables" / "variables") for seed in (1, 2)]
    average(saved, str(root / "average" / "saved" / "variables" / "variables"))
    assert run_tensorflow("restore.py", root).endswith("restored\n")


def test_strings_are_read_as_written(tensorflow_checkpoints):
    with BundleReader(str(tensorflow_checkpoints / "replica-2" / "keras" / "ckpt-1")) as reader:
        assert reader.strings(b"text/.ATTRIBUTES/VARIABLE_VALUE") == [b"replica", b"number 2", b""]


def test_the_rules_name_what_has_no_mean(tensorflow_checkpoints, tmp_path):
    prefixes = [str(tensorflow_checkpoints / f"replica-{seed}" / "odd" / "ckpt-1") for seed in (1, 2)]
    report = average(prefixes, str(tmp_path / "ckpt"))
    assert {name.partition("/")[0]: rule for name, rule in report.rules.items() if not name.endswith("-keys")} == {
        "_CHECKPOINTABLE_OBJECT_GRAPH": "copied (object graph)",
        "iterator": "copied (variant)",
        "save_counter": "copied (integer)",
        "step": "copied (integer)",
        "table": "copied (hash table)",
        "weight": "mean",
    }
    assert (report.source, report.steps) == (1, (1, 2))
    assert report.notes == ("the inputs are at different steps: 1, 2",)


@pytest.mark.parametrize("name", ["keras", "odd", "big", "v1", "types"])
def test_every_flipped_byte_of_data_is_found(tensorflow_checkpoints, tmp_path, name):
    (index,) = (tensorflow_checkpoints / "replica-1" / name).glob("*.index")
    for file in index.parent.glob(f"{index.stem}.*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    prefix = str(tmp_path / index.stem)
    verify(prefix)
    for shard in tmp_path.glob("*.data-*"):
        whole = bytearray(shard.read_bytes())
        step = max(len(whole) // 97, 1)
        for position in range(0, len(whole), step):
            whole[position] ^= 0x10
            shard.write_bytes(whole)
            with pytest.raises(CheckpointError, match="damaged"):
                verify(prefix)
            whole[position] ^= 0x10
        shard.write_bytes(whole)
