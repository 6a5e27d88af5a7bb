from __future__ import annotations

import os
import time

import pytest

from airflow_tf.storage import client
from airflow_tf.storage.cache_entries import cache_entries
from airflow_tf.storage.options import StorageOptions


@pytest.fixture
def staged(installation, tmp_path):
    """Two cached files: one that a run holds, and one that no run holds and was used two days ago."""
    for name in ("held", "free"):
        (tmp_path / name).write_bytes(name.encode() * 1000)
        client.stage(
            (tmp_path / name).as_uri(),
            options=StorageOptions("file"),
            target=tmp_path / "runs" / name / "data",
            cache_dir=installation.cache_dir,
            cache_bytes=2**30,
            on_progress=lambda _text: None,
        )
    free = tmp_path / "runs" / "free" / "data" / "free"
    os.utime(free, (time.time() - 2 * 86400,) * 2)
    free.unlink()
    return tmp_path


def test_entries_are_listed_with_their_runs(airflow_tf, staged):
    code, rows = airflow_tf("cache", "ls", "--output", "json")
    assert code == 0
    assert [row["runs"] for row in rows] == [1, 0]
    code, text = airflow_tf("cache", "ls")
    assert "3.9 KiB" in text


def test_a_damaged_entry_is_named_and_removed(airflow_tf, staged, installation):
    assert airflow_tf("cache", "verify", "--output", "json")[0] == 0
    [entry] = [entry for entry in cache_entries(installation.cache_dir) if entry.holders]
    entry.path.chmod(0o644)
    entry.path.write_bytes(b"x")
    code, rows = airflow_tf("cache", "verify", "--output", "json")
    assert code == 1
    assert sorted(row["result"] for row in rows) == ["damaged", "whole"]
    assert airflow_tf("cache", "verify", "--output", "json")[0] == 0


def test_only_what_no_run_holds_is_pruned(airflow_tf, staged):
    assert airflow_tf("cache", "prune", "--unused-for", "3d", "--yes", "--output", "json") == (0, [])
    _code, rows = airflow_tf("cache", "prune", "--unused-for", "1d", "--dry-run", "--output", "json")
    assert [(row["runs"], row["result"]) for row in rows] == [(0, "would be removed")]
    _code, rows = airflow_tf("cache", "prune", "--yes", "--output", "json")
    assert [(row["runs"], row["result"]) for row in rows] == [(0, "removed")]
    assert [row["runs"] for row in airflow_tf("cache", "ls", "--output", "json")[1]] == [1]
