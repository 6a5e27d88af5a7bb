"""The scripts must work on a bare machine, say what is missing, and never touch another Airflow."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def bash(tmp_path):
    """Run bash code after sourcing lib.sh in an empty copy of the repository."""
    shutil.copytree(SCRIPTS, tmp_path / "scripts")

    def run(code, **variables):
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C"} | variables
        command = ["bash", "-c", f"source {tmp_path}/scripts/lib.sh; {code}"]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)

    return run


def test_settings_of_another_airflow_never_reach_ours(bash, tmp_path):
    done = bash(
        "settle_environment; env",
        HOME=str(tmp_path),
        AIRFLOW_HOME="/srv/airflow",
        AIRFLOW__DATABASE__SQL_ALCHEMY_CONN="postgresql://production/airflow",
        AIRFLOW_CONFIG="/srv/airflow.cfg",
        AIRFLOW_VAR_FLIGHTS="file:///elsewhere",
        AIRFLOW_TF_HDFS="hdfs://127.0.0.1:1",
    )
    assert done.returncode == 0, done.stderr
    assert "production" not in done.stdout
    assert "/srv/" not in done.stdout
    assert "elsewhere" not in done.stdout
    assert f"AIRFLOW_HOME={tmp_path}/.state/airflow" in done.stdout.splitlines()
    assert "AIRFLOW_TF_HDFS=hdfs://127.0.0.1:1" in done.stdout.splitlines()


@pytest.mark.parametrize("home", [{}, {"HOME": "/nonexistent"}], ids=["unset", "missing"])
def test_a_missing_home_is_replaced(bash, tmp_path, home):
    done = bash('settle_environment; echo "$HOME"', **home)
    assert done.stdout.strip() == f"{tmp_path}/.state/home", done.stderr


def test_an_old_python_is_refused_with_the_remedy(bash, tmp_path):
    old = tmp_path / "bin"
    old.mkdir()
    for name in ("python3.13", "python3.12", "python3.11", "python3", "python"):
        (old / name).write_text("#!/bin/sh\nexit 1\n")
        (old / name).chmod(0o755)
    done = bash("find_python", PATH=f"{old}:{os.environ['PATH']}")
    assert done.returncode == 1
    assert "no Python 3.11, 3.12 or 3.13 on PATH; install one" in done.stderr


def test_without_root_the_missing_package_is_named(bash):
    done = bash("id() { echo 1000; }; apt_install 'JDK 17' openjdk-17-jdk-headless")
    assert done.returncode == 1
    assert "JDK 17 is missing and this is not root" in done.stderr
    assert "apt-get install openjdk-17-jdk-headless" in done.stderr


def test_only_a_missing_compiler_is_installed(bash, tmp_path):
    report = 'apt_install() { echo installs "$@"; }; ensure_compiler'
    (tmp_path / "bin").mkdir()
    for name in ("bash", "dirname"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    missing = bash(report, PATH=f"{tmp_path}/bin")
    (tmp_path / "bin" / "gcc").symlink_to("/bin/true")
    found = bash(report, PATH=f"{tmp_path}/bin")
    assert (found.returncode, found.stdout) == (0, ""), found.stderr
    assert missing.stdout == "installs a C compiler (for the simulated NVML) gcc libc6-dev\n"


def test_a_browser_is_installed_where_none_is_there_or_named(bash, tmp_path):
    report = 'apt_install() { echo installs "${@:2}"; }; ensure_chromium'
    (tmp_path / "bin").mkdir()
    for name in ("bash", "dirname"):
        (tmp_path / "bin" / name).symlink_to(shutil.which(name))
    assert bash(report, PATH=f"{tmp_path}/bin").stdout == "installs chromium\n"
    assert bash(report, PATH=f"{tmp_path}/bin", CHROMIUM="/bin/true").stdout == ""
    (tmp_path / "bin" / "chromium").symlink_to("/bin/true")
    assert bash(report, PATH=f"{tmp_path}/bin").stdout == ""


@pytest.mark.parametrize(
    ("version", "expected"),
    [("11.0.2", 1), ("1.8.0_292", 1), ("17.0.15", 0), ("21", 0), ("25.0.1", 0)],
)
def test_only_a_recent_java_counts(bash, version, expected):
    done = bash(f"""java() {{ echo 'openjdk version "{version}" 2025-04-15' >&2; }}; java_is_recent""")
    assert done.returncode == expected, done.stderr


def test_a_postgresql_that_is_there_is_not_installed(bash, tmp_path):
    programs = tmp_path / "postgresql" / "15" / "bin"
    programs.mkdir(parents=True)
    for name in ("initdb", "postgres"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    done = bash("apt_install() { echo installs; }; ensure_postgres", POSTGRES_HOME=str(programs.parent.parent))
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_a_postgresql_that_is_missing_is_installed_without_a_cluster_of_its_own(bash, tmp_path):
    drop_ins = tmp_path / "createcluster.d"
    code = "has_postgres() { return 1; }; id() { echo 0; }; apt_install() { cat $POSTGRES_DROP_INS/*; echo $2; }"
    done = bash(f"{code}; ensure_postgres", POSTGRES_DROP_INS=str(drop_ins))
    assert done.stdout.splitlines() == ["create_main_cluster = false", "postgresql"], done.stderr


def test_kerberos_is_installed_where_one_of_its_programs_is_missing(bash, tmp_path):
    code = f"command() {{ [ -e {tmp_path}/$2 ]; }}"
    asked = f"{code}; apt_install() {{ echo ${{@:2}}; }}; ensure_kerberos"
    (tmp_path / "krb5kdc").touch()
    assert bash(asked).stdout.split() == ["krb5-kdc", "krb5-admin-server", "krb5-user"]
    for name in ("kdb5_util", "kadmin.local", "kinit"):
        (tmp_path / name).touch()
    done = bash(asked)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_scripts_are_valid_bash_and_executable():
    for name in ("demo", "lock", "test"):
        assert os.access(SCRIPTS / name, os.X_OK)
        subprocess.run(["bash", "-n", str(SCRIPTS / name)], check=True)


def test_an_unknown_option_of_the_demo_is_refused(bash, tmp_path):
    done = bash("exec scripts/demo --hfds", HOME=str(tmp_path))
    assert done.returncode == 1
    assert "usage: scripts/demo [--hdfs | --ui]" in done.stderr
