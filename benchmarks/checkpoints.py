"""Averaging of checkpoints beside TensorFlow's own load-and-save: the same files, warm page cache, in turn.

Then the memory of ours for inputs that are larger than any memory should be, the way to a published version on HDFS
beside the bare upload of its bytes, and the steps of a training whose checkpoints are copied to HDFS while it goes on.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from harness import SHOWN, Row, arguments, pairs, report

from airflow_tf.core.checkpoint import BundleReader, BundleWriter, Entry
from airflow_tf.storage.base import Uri
from airflow_tf.storage.client import carried
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.registry import open_file_system
from airflow_tf.testing.hdfs import HdfsCluster

_PROGRAM = Path(__file__).parent / "average_checkpoints.py"
_PUBLISHING = Path(__file__).parent / "publish_checkpoint.py"
_TRAINING = Path(__file__).parent / "train_steps.py"
_TENSOR_BYTES = 32 * 2**20
_FLOAT32 = 1
_PAIRS = 5


def write(prefix: Path, size: int, seed: int) -> str:
    """Write a checkpoint of ``size`` bytes of float32 in tensors of at most 32 MiB."""
    make = np.random.default_rng(seed)
    with BundleWriter(str(prefix)) as writer:
        for number, start in enumerate(range(0, size, _TENSOR_BYTES)):
            count = min(_TENSOR_BYTES, size - start) // 4
            values = make.random(count, dtype=np.float32)
            writer.add(f"layer_{number}/kernel".encode(), Entry(_FLOAT32, (count,), 0, 0, 0, 0), [values.tobytes()])
        writer.commit()
    return str(prefix)


def run(kind: str, destination: Path, prefixes: Sequence[str]) -> dict[str, float]:
    """Average in a fresh process; what an earlier one has written is removed before."""
    shutil.rmtree(destination.parent, ignore_errors=True)
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, str(_PROGRAM), kind, str(destination), *prefixes]
    done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def require_equal(ours: Path, reference: Path) -> None:
    """Compare the results, outside the measured time.

    :raises RuntimeError: if they differ by more than the rounding of a sum of float32.
    """
    with BundleReader(str(ours)) as left, BundleReader(str(reference)) as right:
        for key in left.entries:
            one, other = (np.frombuffer(reader.read(key), "f4") for reader in (left, right))
            if not np.allclose(one, other, rtol=1e-6):
                raise RuntimeError(f"{key!r} differs")


def average_rows(folder: Path, inputs: int, megabytes: int) -> list[Row]:
    """Measure both sides on the same inputs."""
    prefixes = [write(folder / f"replica-{number}", megabytes * 10**6, number) for number in range(inputs)]
    ours, reference = folder / "ours" / "ckpt", folder / "tensorflow" / "ckpt"
    mine, theirs = pairs(_PAIRS, lambda: run("ours", ours, prefixes), lambda: run("tensorflow", reference, prefixes))
    require_equal(ours, reference)
    case, total, name = f"{inputs} x {megabytes} MB", inputs * megabytes / 1000, "TensorFlow load and save"
    speeds = total / mine["seconds"], total / theirs["seconds"]
    return [
        Row(case, "GB/s of input", *speeds, name, "ours >= 1.0"),
        Row(case, "times as fast", *speeds, name, "ratio >= 1.5"),
        Row(case, "CPU seconds", mine["cpu"], theirs["cpu"], name, SHOWN),
        Row(case, "MB anonymous memory added", mine["MB"], theirs["MB"], name, "ours <= 64"),
        Row(case, "MB anonymous memory of the process", mine["whole MB"], theirs["whole MB"], name, SHOWN),
    ]


def large_row(folder: Path, inputs: int, megabytes: int, small: Row) -> Row:
    """Measure the memory of ours alone, beside that for the small inputs."""
    prefixes = [write(folder / f"large-{number}", megabytes * 10**6, number) for number in range(inputs)]
    mine = run("ours", folder / "ours" / "ckpt", prefixes)
    case = f"{inputs} x {megabytes} MB"
    return Row(case, "MB anonymous memory added", mine["MB"], small.ours, f"ours, {small.case}", "ours <= 64")


def publish_rows(folder: Path, inputs: int, megabytes: int) -> list[Row]:
    """Measure the way from the replicas' checkpoints to a published version beside the bare upload of its bytes."""
    prefixes = [write(folder / f"publish-{number}", megabytes * 10**6, number) for number in range(inputs)]
    number = itertools.count()
    rows = []
    with HdfsCluster(blocksize_bytes=128 << 20) as cluster:

        def measure(kind: str) -> dict[str, float]:
            uri = f"{cluster.uri}/{kind}/v=20260101T000000Z-{next(number):08x}"
            figures = bring(kind, uri, folder / "publish", prefixes)
            delete(uri)
            return figures

        for kind, case in (("ours", f"1 x {megabytes} MB"), ("averaged", f"{inputs} x {megabytes} MB averaged")):
            mine, theirs = pairs(_PAIRS, lambda kind=kind: measure(kind), lambda: measure("native"))  # type: ignore[misc]
            name = "bare upload, hdfs-native"
            rows.append(Row(case, "seconds to be published", mine["seconds"], theirs["seconds"], name, "ratio <= 1.3"))
    return rows


def upload_row(folder: Path, steps: int, megabytes: int) -> Row:
    """Measure the steps of a training with one thread, its checkpoints copied whenever there is a new one, or not."""
    number = itertools.count()
    with HdfsCluster(blocksize_bytes=128 << 20) as cluster:

        def measure(*, copies: bool) -> dict[str, float]:
            checkpoints = folder / "training" / "checkpoints"
            shutil.rmtree(checkpoints.parent, ignore_errors=True)
            checkpoints.mkdir(parents=True)
            uri = f"{cluster.uri}/copies/{next(number)}"
            with copying(checkpoints, uri) if copies else contextlib.nullcontext():
                command = [sys.executable, str(_TRAINING), str(checkpoints), *map(str, (steps, steps // 4, megabytes))]
                environment = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
                done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
            if copies:
                require_copy(uri)
            figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
            return figures

        mine, theirs = pairs(_PAIRS, lambda: measure(copies=True), lambda: measure(copies=False))
    case = f"{steps} steps, 4 checkpoints of {megabytes} MB"
    return Row(
        case, "seconds per step", mine["seconds"], theirs["seconds"], "the same, nothing copied", "ratio <= 1.05"
    )


@contextlib.contextmanager
def copying(folder: Path, uri: str) -> Iterator[None]:
    """Run the process that copies checkpoints beside an attempt; it ends when the last one is there."""
    options = StorageOptions.from_uri(uri).to_json()
    job = {"folder": str(folder), "uri": uri, "options": options, "every_seconds": 1.0}
    command = [sys.executable, "-P", "-m", "airflow_tf.supervisor.carrier"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as process:
        assert process.stdin is not None
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()
        yield
        process.stdin.close()


def require_copy(uri: str) -> None:
    """Look for the copy, outside the measured time, and make room for the next one.

    :raises RuntimeError: if there is none.
    """
    if carried(uri, options=StorageOptions.from_uri(uri)) is None:
        raise RuntimeError("nothing was copied")
    delete(uri)


def bring(kind: str, uri: str, folder: Path, prefixes: Sequence[str]) -> dict[str, float]:
    """Publish or upload in a fresh process."""
    shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, str(_PUBLISHING), kind, uri, str(folder), *prefixes]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def delete(uri: str) -> None:
    """Make room on the cluster's disk for the next one."""
    parsed = Uri.parse(uri)
    open_file_system(parsed, StorageOptions.from_uri(uri)).delete(parsed.path)


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__ or "")
    folder = Path(tempfile.mkdtemp(prefix="bench-checkpoints-"))
    try:
        rows = average_rows(folder, 4, 50 if options.quick else 500)
        memory = next(row for row in rows if row.target == "ours <= 64")
        rows.append(large_row(folder, 8, 200 if options.quick else 2000, memory))
        for path in folder.glob("large-*"):
            path.unlink()
        rows += publish_rows(folder, 4, 50 if options.quick else 500)
        rows.append(upload_row(folder, 200 if options.quick else 2000, 50 if options.quick else 200))
    finally:
        shutil.rmtree(folder)
    report(rows, options.json)


if __name__ == "__main__":
    main()
