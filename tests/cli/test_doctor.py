from __future__ import annotations

import stat
import sys
from pkgutil import resolve_name

import pytest

from airflow_tf.cli import doctor

GOOD = "dag_id: good\ntrain: {entrypoint: train.py}\n"


@pytest.fixture
def python(tmp_path):
    """Make an interpreter that behaves as told instead of importing TensorFlow."""

    def make(line):
        file = tmp_path / "python"
        file.write_text(f"#!{sys.executable}\n{line}\n")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)
        return file

    return make


@pytest.fixture
def healthy(python):
    return python('print(\'{"python": "3.11", "tensorflow": "2.21", "keras": "3", "cuda": null}\')')


def results(rows):
    return {row["check"]: (row["result"], row["detail"], row["remedy"]) for row in rows}


@pytest.mark.airflow
def test_a_healthy_host_has_only_ok_lines(airflow_tf, airflow_database, healthy):
    code, rows = airflow_tf("doctor", "--python", healthy, "--output", "json")
    assert {row["check"]: row["result"] for row in rows} == dict.fromkeys(
        [
            "airflow",
            "database",
            "provider",
            "ledger",
            "lock folder",
            "devices",
            "cache folder",
            "memory limits",
            "worker restarts",
            "training interpreter",
            "declarations",
        ],
        "ok",
    )
    assert code == 0
    assert results(rows)["devices"][1] == "2 of 2 cpu devices free"


@pytest.mark.airflow
def test_everything_wrong_is_reported_at_once_with_remedies(
    airflow_tf, airflow_database, airflow_home, installation, monkeypatch, tmp_path
):
    dags = tmp_path / "dags"
    (dags / "sub").mkdir(parents=True)
    (dags / "sub" / "train.py").touch()
    (dags / "sub" / "good.tf.yaml").write_text(GOOD)
    (dags / "bad.tf.yaml").write_text(GOOD)
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(dags))
    monkeypatch.setenv("AIRFLOW__AIRFLOW_TF__LOCK_DIR", "/proc/nowhere")
    monkeypatch.setenv("AIRFLOW__AIRFLOW_TF__LEDGER_URL", "mysql://host/db")
    code, rows = airflow_tf(
        "doctor", "--python", "/no/such/python", "--hdfs", f"file://{tmp_path}/none", "--output", "json"
    )
    found = results(rows)
    assert code == 1
    assert found["lock folder"][0] == "failed"
    assert "lock_dir" in found["lock folder"][2]
    assert found["ledger"][0] == "failed"
    assert found["training interpreter"][:2] == ("failed", "/no/such/python cannot be run: No such file or directory")
    assert "pip install" in found["training interpreter"][2]
    assert found["hdfs"][0] == "failed"
    assert found["bad.tf.yaml"][0] == "failed"
    assert "no script 'train.py'" in found["bad.tf.yaml"][1]
    assert found["sub/good.tf.yaml"][0] == "ok"


def test_an_unreadable_option_is_a_failed_line(airflow_tf, monkeypatch):
    monkeypatch.setenv("AIRFLOW__AIRFLOW_TF__STATIC_DEVICES", "GPU-1")
    code, rows = airflow_tf("doctor", "--output", "json")
    assert code == 1
    assert results(rows)["settings"][0] == "failed"
    assert "JSON list" in results(rows)["settings"][2]


def test_an_interpreter_without_tensorflow_fails_with_its_last_line(python):
    check = doctor._guarded(
        "x", lambda: doctor._training(str(python("raise ImportError('No module named tensorflow')")))
    )
    assert not check.ok
    assert check.detail.endswith("cannot import TensorFlow: ImportError: No module named tensorflow")


def test_an_interpreter_that_hangs_is_given_up(python, monkeypatch):
    monkeypatch.setattr(doctor, "TRAINING_DEADLINE_SECONDS", 0.5)
    check = doctor._guarded("x", lambda: doctor._training(str(python("import time; time.sleep(300)"))))
    assert check.detail.endswith("did not import TensorFlow within 0 s")


@pytest.mark.tensorflow
def test_this_interpreter_can_train():
    assert "TensorFlow 2.21" in doctor._training(sys.executable)


def test_a_network_file_system_is_refused(installation, monkeypatch):
    monkeypatch.setattr("airflow_tf.ledger.location.filesystem_type", lambda _path: "nfs4")
    check = doctor._guarded("cache", lambda: doctor._cache(installation))
    assert not check.ok
    assert "network file system (nfs4)" in check.detail
    assert "local disk" in check.remedy


def test_a_full_disk_is_refused(installation, monkeypatch):
    monkeypatch.setattr(doctor.shutil, "disk_usage", lambda _path: type("U", (), {"free": 2**20}))
    check = doctor._guarded("cache", lambda: doctor._cache(installation))
    assert check.detail == f"1.0 MiB free at {installation.cache_dir}"


def test_a_host_without_devices_is_a_failure(installation, monkeypatch):
    monkeypatch.setattr(doctor, "read_all", lambda _settings, _kind: [])
    assert doctor._guarded("devices", lambda: doctor._devices(installation)).remedy.startswith(
        "Set [airflow_tf] cpu_slots"
    )


def test_a_check_that_breaks_is_a_failed_one():
    assert doctor._guarded("x", lambda: str(1 / 0)).detail == "ZeroDivisionError: division by zero"


def test_every_command_is_offered():
    from airflow_tf.cli import get_cli_commands

    [group] = get_cli_commands()
    assert group.name == "tf"
    names = [command.name for command in group.subcommands]
    assert names == [
        "doctor", "init", "validate", "schema", "devices", "runs", "logs", "reservations", "cancel", "prune",
        "plan", "session-config", "checkpoints", "cache", "hosts", "import",
    ]  # fmt: skip
    assert all(callable(command) for command in _loaded(group))


def _loaded(group):
    """The functions behind all commands: Airflow imports them when one is called."""
    from airflow.cli.cli_config import GroupCommand

    for command in group.subcommands:
        if isinstance(command, GroupCommand):
            yield from _loaded(command)
        else:
            importing = dict(zip(command.func.__code__.co_freevars, command.func.__closure__, strict=True))
            yield resolve_name(importing["import_path"].cell_contents)


def test_a_terminal_gets_a_mark_per_line_and_whole_remedies(airflow_tf, python):
    code, printed = airflow_tf("doctor", "--python", python("raise ImportError('no tensorflow: ' + 'x' * 200)"))
    assert code == 1
    lines = printed.splitlines()
    assert any(line.startswith("✔ airflow  ") for line in lines)
    failed = next(at for at, line in enumerate(lines) if line.startswith("✘ training interpreter"))
    assert "x" * 200 in lines[failed]
    assert lines[failed + 1].strip().startswith("→ Install it: ")
