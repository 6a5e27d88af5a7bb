"""``airflow tf checkpoints``: files only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from airflow_tf.core.checkpoint import BundleReader, BundleWriter, Entry
from airflow_tf.core.checkpoint.completeness import write_state


@pytest.fixture
def write(tmp_path):
    def call(name, value):
        prefix = str(tmp_path / "a folder" / name)
        with BundleWriter(prefix) as writer:
            writer.add(b"w", Entry(1, (1,), 0, 0, 0, 0), [np.float32([value]).tobytes()])
            writer.commit()
        os.utime(f"{prefix}.index", (value, value))
        os.utime(f"{prefix}.data-00000-of-00001", (value, value))
        return prefix

    return call


@pytest.fixture
def run(write):
    return [write(f"ckpt-{step}", step) for step in (5, 10, 20, 40)]


def damage(prefix):
    Path(f"{prefix}.data-00000-of-00001").write_bytes(b"????")


def names(rows, result="removed"):
    return [Path(row["checkpoint"]).name for row in rows if row["result"] == result]


def test_ls_lists_by_step_and_says_what_never_finished(airflow_tf, run):
    Path(f"{run[1]}.index").unlink()
    code, rows = airflow_tf("checkpoints", "ls", Path(run[0]).parent, "--output", "json")
    assert code == 0
    assert [(row["step"], row["tensors"], row["problem"]) for row in rows] == [
        (5, 1, ""),
        (10, 0, "unfinished"),
        (20, 1, ""),
        (40, 1, ""),
    ]


def test_verify_fails_if_one_is_damaged(airflow_tf, run):
    assert airflow_tf("checkpoints", "verify", *run, "--output", "json")[0] == 0
    damage(run[2])
    code, rows = airflow_tf("checkpoints", "verify", Path(run[0]).parent, "--output", "json")
    assert code == 1
    assert [row["result"] for row in rows] == ["whole", "whole", "failed", "whole"]
    assert "the checksum of 'w' does not match" in rows[2]["reason"]


def test_average_with_weights_and_its_rules(airflow_tf, run, tmp_path):
    out = tmp_path / "out" / "ckpt"
    code, rows = airflow_tf(
        "checkpoints", "average", run[0], f"{run[1]}.index", "--to", out, "--weights", "1,3", "--output", "json"
    )
    assert code == 0
    assert [(row["weight"], row["step"]) for row in rows] == [(0.25, 5), (0.75, 10)]
    with BundleReader(str(out)) as reader:
        assert np.frombuffer(reader.read(b"w"), "f4").tolist() == [8.75]
    code, rows = airflow_tf(
        "checkpoints", "average", *run, "--to", out, "--decay", "0.5", "--rules", "--output", "json"
    )
    assert (code, rows) == (0, [{"tensor": "w", "rule": "mean"}])


def test_errors_are_one_line_with_code_1(airflow_tf, run, tmp_path):
    code, said = airflow_tf("checkpoints", "average", run[0], tmp_path / "none", "--to", tmp_path / "out")
    assert (code, said.split(":")[0]) == (1, "airflow tf checkpoints average")
    code, said = airflow_tf("checkpoints", "diff", run[0], Path(run[0]).parent)
    assert "holds 4 checkpoints" in said
    code, said = airflow_tf("checkpoints", "prune", Path(run[0]).parent, "-y")
    assert "everything would be removed" in said


def test_diff_shows_the_distance_of_values(airflow_tf, run, write):
    assert airflow_tf("checkpoints", "diff", run[0], write("same", 5), "--output", "json") == (0, [])
    code, rows = airflow_tf("checkpoints", "diff", run[0], run[1], "--output", "json")
    assert (code, rows) == (1, [{"tensor": "w", "left": "float [1]", "right": "float [1]", "largest": 5.0}])


def test_prune_keeps_what_a_rule_the_state_file_or_a_reader_needs(airflow_tf, run):
    folder = Path(run[0]).parent
    write_state(run[1])
    options = ("checkpoints", "prune", folder, "--keep-last", 1, "--output", "json")
    _, rows = airflow_tf(*options, "--dry-run")
    assert names(rows, "would be removed") == ["ckpt-5", "ckpt-20"]
    with BundleReader(run[2]):
        code, rows = airflow_tf(*options, "-y")
    assert (code, names(rows)) == (0, ["ckpt-5"])
    reasons = {Path(row["checkpoint"]).name: row["reason"] for row in rows}
    assert reasons["ckpt-10"] == "named by the file 'checkpoint'"
    assert reasons["ckpt-20"] == "being read"
    assert reasons["ckpt-40"] == "the newest"
    assert sorted(path.name for path in folder.glob("ckpt-5*")) == []


def test_prune_finishes_what_a_crash_left_and_spares_a_save_under_way(airflow_tf, run):
    folder = Path(run[0]).parent
    Path(f"{run[0]}.index").rename(folder / ".pruned-ckpt-5.index")  # killed between the phases
    (folder / "ckpt-50.data-00000-of-00001").write_bytes(b"")  # being saved: younger than all
    _, rows = airflow_tf("checkpoints", "prune", folder, "--keep-last", 3, "-y", "--output", "json")
    assert names(rows, "kept") == ["ckpt-10", "ckpt-20", "ckpt-40", "ckpt-50"]
    assert [path.name for path in folder.iterdir() if "ckpt-5." in path.name] == []


def test_no_database_is_needed(run, tmp_path):
    home = tmp_path / "home"
    environment = os.environ | {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:////{tmp_path}/nowhere/airflow.db",
    }
    command = [sys.executable, "-m", "airflow", "tf", "checkpoints", "verify", run[0], "--output", "json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert '"whole"' in done.stdout


@pytest.fixture
def base(tmp_path):
    for day in (1, 2, 3):
        folder = tmp_path / "models" / f"v=2026010{day}T000000Z-0000000{day}"
        folder.mkdir(parents=True)
        manifest = {"fence": 1, "digest": str(day), "metrics": {"mae": day / 10}, "origin": {"step": day * 100}}
        (folder / "manifest.json").write_text(json.dumps(manifest))
        (folder / "_SUCCESS").touch()
    (tmp_path / "models" / "_latest").write_text("v=20260102T000000Z-00000002")
    return f"file://{tmp_path}/models"


def test_ls_of_a_base_shows_its_versions(airflow_tf, base):
    code, rows = airflow_tf("checkpoints", "ls", base, "--output", "json")
    assert code == 0
    assert [(row["version"][:10], row["step"], row["metrics"], row["state"]) for row in rows] == [
        ("v=20260101", 100, {"mae": 0.1}, ""),
        ("v=20260102", 200, {"mae": 0.2}, "latest"),
        ("v=20260103", 300, {"mae": 0.3}, ""),
    ]
    assert "mae=0.2" in airflow_tf("checkpoints", "ls", base)[1]
    several = airflow_tf("checkpoints", "ls", base, f"{base}/", "--output", "json")[1]
    assert [row["base"] for row in several] == [base] * 3 + [f"{base}/"] * 3


def test_prune_of_a_base_marks_then_removes_and_never_the_latest(airflow_tf, base):
    options = ("checkpoints", "prune", base, "--keep-last", 1, "--grace", "0", "--output", "json")
    results = lambda rows: [row["result"] for row in rows]  # noqa: E731
    assert results(airflow_tf(*options, "--dry-run")[1]) == ["would be marked", "kept", "kept"]
    assert results(airflow_tf(*options, "--dry-run")[1]) == ["would be marked", "kept", "kept"]  # nothing was marked
    assert results(airflow_tf(*options, "-y")[1]) == ["marked", "kept", "kept"]
    assert results(airflow_tf(*options, "--dry-run")[1]) == ["would be removed", "kept", "kept"]
    assert results(airflow_tf(*options, "-y")[1]) == ["removed", "kept", "kept"]
    assert len(airflow_tf("checkpoints", "ls", base, "--output", "json")[1]) == 2


def test_the_best_versions_by_a_metric_are_kept(airflow_tf, base):
    options = ("checkpoints", "prune", base, "--keep-best", 1, "--dry-run", "--output", "json")
    assert "needs the metric" in airflow_tf(*options)[1]
    message = airflow_tf(*options, "--metric", "mea")[1]
    assert "no version has the metric 'mea' by which the best are kept. Known are: mae." in message
    rows = airflow_tf(*options, "--metric", "mae")[1]
    assert rows[0] == {"version": "v=20260101T000000Z-00000001", "result": "kept", "reason": "among the best 1"}
    assert "cannot be listed together" in airflow_tf("checkpoints", "ls", base, "/tmp")[1]
