from __future__ import annotations

import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from airflow_tf.core.errors import AirflowTfError
from airflow_tf.testing import hadoop
from airflow_tf.testing.hdfs import URI_VARIABLE, HdfsCluster
from tests.testing.servers import eventually, servers_of

pytestmark = pytest.mark.hdfs


def test_serves_rpc_and_webhdfs_and_survives_a_killed_datanode(hdfs_cluster: HdfsCluster) -> None:
    import hdfs_native

    client = hdfs_native.Client(hdfs_cluster.uri)
    with client.create("/harness/hello") as writer:
        writer.write(b"hello")
    url = f"{hdfs_cluster.webhdfs_url}/webhdfs/v1/harness/hello?op=OPEN"
    with urllib.request.urlopen(url, timeout=20) as answer:
        assert answer.read() == b"hello"

    hdfs_cluster.kill("datanode1")
    assert client.read("/harness/hello").read() == b"hello"
    hdfs_cluster.pause("datanode2")
    hdfs_cluster.restart("datanode1")  # does not wait for the paused one
    hdfs_cluster.resume("datanode2")
    hdfs_cluster.restart("namenode")
    assert client.read("/harness/hello").read() == b"hello"


def test_a_paused_namenode_does_not_answer_until_it_is_resumed(hdfs_cluster: HdfsCluster) -> None:
    hdfs_cluster.pause("namenode")
    try:
        with pytest.raises(TimeoutError):
            urllib.request.urlopen(f"{hdfs_cluster.webhdfs_url}/jmx", timeout=1)
    finally:
        hdfs_cluster.resume("namenode")
    with urllib.request.urlopen(f"{hdfs_cluster.webhdfs_url}/jmx", timeout=20) as answer:
        assert answer.status == 200


def test_unknown_process_names_are_refused(hdfs_cluster: HdfsCluster) -> None:
    with pytest.raises(AirflowTfError, match=r"no process 'datanode9'.*datanode2"):
        hdfs_cluster.kill("datanode9")


def test_stop_leaves_no_process_and_no_folder() -> None:
    with HdfsCluster(datanodes=1) as cluster:
        folder = cluster.folder
        assert len(servers_of(folder)) == 2
    assert servers_of(folder) == []
    assert not folder.exists()


def test_processes_die_with_a_killed_owner_and_the_next_cluster_removes_the_folder() -> None:
    script = (
        "from airflow_tf.testing.hdfs import HdfsCluster\n"
        "c = HdfsCluster(datanodes=1).start()\n"
        "print(c.folder, flush=True)\n"
        "input()\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    folder = Path(owner.stdout.readline().strip())
    assert len(servers_of(folder)) == 2
    owner.kill()
    owner.communicate()
    assert eventually(lambda: servers_of(folder) == [])
    assert folder.exists()
    with HdfsCluster(datanodes=1):
        assert not folder.exists()


def test_run_hands_the_uri_to_a_command_and_returns_its_code() -> None:
    code = f"import os, sys; print(os.environ[{URI_VARIABLE!r}]); sys.exit(7)"
    command = [sys.executable, "-m", "airflow_tf.testing.hdfs", "run", "--", sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 7, done.stderr
    assert done.stdout.startswith("hdfs://127.0.0.1:")


def test_terminating_run_ends_the_command_and_the_cluster(tmp_path: Path) -> None:
    code = "import time; print('up', flush=True); time.sleep(600)"
    command = [sys.executable, "-m", "airflow_tf.testing.hdfs", "run", "--", sys.executable, "-c", code]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert run.stdout is not None
    assert run.stdout.readline() == "up\n"
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=60)
    assert run.returncode == 128 + signal.SIGTERM
    assert servers_of(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


def test_missing_java_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(AirflowTfError, match=r"java is missing.*apt-get install openjdk-17"):
        HdfsCluster().start()


def test_missing_maven_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_TF_CACHE", str(tmp_path / "cache"))
    with pytest.raises(AirflowTfError, match=r"mvn is missing.*apt-get install maven"):
        hadoop.fetch_jars()


def test_a_failed_fetch_shows_maven_s_own_words_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    maven = tmp_path / "bin" / "mvn"
    maven.parent.mkdir()
    maven.write_text("#!/bin/sh\necho cannot reach the repository\nexit 1\n")
    maven.chmod(0o755)
    monkeypatch.setenv("MAVEN_HOME", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_TF_CACHE", str(tmp_path / "cache"))
    with pytest.raises(AirflowTfError, match="cannot reach the repository"):
        hadoop.fetch_jars()
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == [f"hadoop-{hadoop.HADOOP_VERSION}.lock"]


def test_the_pytest_plugin_imports_nothing_heavy() -> None:
    heavy = ["airflow", "hdfs_native", "hdfs", "requests", "tensorflow", "sqlalchemy", "pydantic"]
    code = f"import sys, airflow_tf.testing.pytest_plugin; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
