"""Checkpoints written by TensorFlow in a process of its own, once per session, and small ones written by us."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from airflow_tf.core.checkpoint import BundleWriter, Entry

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture(scope="session")
def run_tensorflow():
    """Run a program of ``programs/`` and return what it prints."""
    return _run


def _run(program, *arguments):
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1"}
    command = [sys.executable, str(PROGRAMS / program), *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="session")
def tensorflow_checkpoints(tmp_path_factory, run_tensorflow):
    """Folder with replica-1 and replica-2, each with keras, odd, big and v1 checkpoints."""
    folder = tmp_path_factory.mktemp("written")
    run_tensorflow("write.py", folder)
    return folder


@pytest.fixture
def write(tmp_path):
    """Write a checkpoint of numpy arrays below ``tmp_path`` and return its prefix."""
    numbers = {
        "float32": 1,
        "float64": 2,
        "int32": 3,
        "int64": 9,
        "float16": 19,
        "bool": 10,
        "complex64": 8,
        "uint8": 4,
    }

    def write(name, **tensors):
        prefix = str(tmp_path / name)
        with BundleWriter(prefix) as writer:
            for key, value in tensors.items():
                array = np.asarray(value)
                entry = Entry(numbers[array.dtype.name], array.shape, 0, 0, 0, 0)
                writer.add(key.encode(), entry, [array.tobytes()])
            writer.commit()
        return prefix

    return write
