"""Hadoop's own jars from Maven, and the configuration of a small cluster on loopback.

The jars are those of the published Hadoop release, so what is tested is the real NameNode and DataNode.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from airflow_tf.core.errors import AirflowTfError

HADOOP_VERSION = "3.5.0"
"""First release whose WebHDFS runs on Java 17 without ``--add-opens``."""

_ARTIFACTS = ("hadoop-common", "hadoop-hdfs", "hadoop-hdfs-client")
_FETCH_SECONDS = 900
_TAIL_LINES = 15


def cache_folder() -> Path:
    """Return the folder for fetched files: ``$AIRFLOW_TF_CACHE``, else ``~/.cache/airflow_tf``."""
    chosen = os.environ.get("AIRFLOW_TF_CACHE")
    return Path(chosen) if chosen else Path.home() / ".cache" / "airflow_tf"


def find_program(name: str, home_variable: str, package: str) -> str:
    """Return the path of ``name`` from ``$<home_variable>/bin`` or ``PATH``.

    :raises AirflowTfError: if it is in neither place.
    """
    home = os.environ.get(home_variable)
    found = shutil.which(name, path=str(Path(home) / "bin")) if home else None
    found = found or shutil.which(name)
    if found is None:
        raise AirflowTfError(
            f"{name} is missing",
            f"the test HDFS needs it and it is neither in ${home_variable}/bin nor on PATH",
            f"Install it (Debian: apt-get install {package}) or set {home_variable}.",
        )
    return found


def fetch_jars(version: str = HADOOP_VERSION) -> Path:
    """Return the folder with Hadoop's jars, fetching them by Maven on first use (70 MB).

    Two processes that ask at once share one fetch (lock file); a folder that exists is complete, because it is
    renamed into place.

    :raises AirflowTfError: if Maven is missing or fails.
    """
    cache = cache_folder()
    target = cache / f"hadoop-{version}"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"hadoop-{version}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            _fetch(version, cache, target)
    return target


def _fetch(version: str, cache: Path, target: Path) -> None:
    maven = find_program("mvn", "MAVEN_HOME", "maven")
    find_program("java", "JAVA_HOME", "openjdk-17-jre-headless")
    with tempfile.TemporaryDirectory(dir=cache, prefix=".fetch-") as work:
        (Path(work) / "pom.xml").write_text(_pom(version))
        command = [maven, "-B", "-ntp", "-q", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        try:
            done = subprocess.run(
                [*command, "-DoutputDirectory=lib"],
                cwd=work,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=_FETCH_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise AirflowTfError(
                f"Hadoop {version} was not fetched", f"Maven did not end within {error.timeout:.0f} s", "Try again."
            ) from error
        if done.returncode != 0:
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-_TAIL_LINES:])
            raise AirflowTfError(
                f"Hadoop {version} was not fetched",
                f"Maven ended with {done.returncode}:\n{tail}\n",
                "Check the network and Maven's settings, then run: python -m airflow_tf.testing.hdfs fetch",
            )
        (Path(work) / "lib").rename(target)


def _pom(version: str) -> str:
    dependencies = "".join(
        f"<dependency><groupId>org.apache.hadoop</groupId><artifactId>{name}</artifactId>"
        f"<version>{version}</version></dependency>"
        for name in _ARTIFACTS
    )
    return (
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>airflow-tf</groupId><artifactId>hadoop-for-tests</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>"
    )


def write_configuration(folder: Path, *, data: Path, blocksize_bytes: int, namenodes: Mapping[str, str]) -> None:
    """Write ``core-site.xml``, ``hdfs-site.xml``, logging and the empty web applications into ``folder``.

    The jars carry no web applications, and the servers refuse to start without their folders. The short heartbeats
    make the NameNode expire a dead DataNode after 12 s instead of 10 minutes.

    :param namenodes: the properties, of both files, that say where the NameNodes are.
    """
    for name in ("hdfs", "datanode", "secondary", "journal"):
        web = folder / "webapps" / name / "WEB-INF"
        web.mkdir(parents=True)
        (web / "web.xml").write_text("<web-app/>")
    (folder / "webapps" / "static").mkdir()
    (folder / "log4j.properties").write_text(
        "log4j.rootLogger=WARN,console\n"
        "log4j.appender.console=org.apache.log4j.ConsoleAppender\n"
        "log4j.appender.console.layout=org.apache.log4j.PatternLayout\n"
        "log4j.appender.console.layout.ConversionPattern=%d %p %c: %m%n\n"
    )
    core = {"hadoop.tmp.dir": str(data)}
    hdfs = {
        "dfs.replication": "2",
        "dfs.blocksize": str(blocksize_bytes),
        "dfs.namenode.fs-limits.min-block-size": "65536",
        "dfs.namenode.rpc-bind-host": "127.0.0.1",
        "dfs.namenode.safemode.extension": "0",
        "dfs.namenode.datanode.registration.ip-hostname-check": "false",
        "dfs.datanode.hostname": "127.0.0.1",
        "dfs.heartbeat.interval": "1",
        "dfs.namenode.heartbeat.recheck-interval": "1000",
        "dfs.namenode.edits.noeditlogchannelflush": "true",
    }
    write_properties(folder / "core-site.xml", {**core, **namenodes})
    write_properties(folder / "hdfs-site.xml", {**hdfs, **namenodes})


def write_properties(file: Path, properties: Mapping[str, str]) -> None:
    """Write a file of Hadoop properties."""
    rows = "\n".join(
        f"<property><name>{escape(key)}</name><value>{escape(value)}</value></property>"
        for key, value in properties.items()
    )
    file.write_text(f"<configuration>\n{rows}\n</configuration>\n")
