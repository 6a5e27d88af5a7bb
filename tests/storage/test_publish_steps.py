"""Publications to a real HDFS, stopped at any step: the publisher is killed, or the NameNode is."""

from __future__ import annotations

import contextlib
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from airflow_tf.core.checkpoint import BundleReader
from airflow_tf.core.errors import StorageUnavailableError
from airflow_tf.core.manifest import PublishManifest
from airflow_tf.operators.aggregation import Aggregation, Choices
from airflow_tf.operators.candidates import MODEL, collect, describe
from airflow_tf.storage import client
from airflow_tf.storage.ahead import Ahead
from airflow_tf.storage.base import Uri, exists, read_all
from airflow_tf.storage.progress import Patience, Reporter
from airflow_tf.testing.hdfs import HdfsCluster
from tests.checkpoint.conftest import write
from tests.storage.storage_helpers import eventually
from tests.storage.test_publish import Place, base_uri, local, manifest_of, publish_here, whole

__all__ = ["local", "write"]  # fixtures
pytestmark = pytest.mark.hdfs

DATA = f"{MODEL}.data-00000-of-00001"
METRICS = {f"replica-{n}": {"mae": mae} for n, mae in enumerate((3.0, 1.0, 2.0))}


class Movers:
    """Starts the movers of :mod:`airflow_tf.storage.client`, those of each thread with their own chosen step."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._chosen = threading.local()

    def choose(self, kind: str, step: int | str) -> Path:
        """Return the folder in which the next movers of this thread tell of their steps."""
        folder = self.folder / str(threading.get_ident())
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "steps").write_text("")
        self._chosen.arguments = [str(folder), kind, str(step)]
        return folder

    def start(self, command: Sequence[str], **options: Any) -> subprocess.Popen[bytes]:
        script = Path(__file__).with_name("stepwise_mover.py")
        return subprocess.Popen([sys.executable, "-P", str(script), command[-1], *self._chosen.arguments], **options)


@pytest.fixture
def chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Movers:
    found = Movers(tmp_path / "movers")
    monkeypatch.setattr(client, "subprocess", SimpleNamespace(Popen=found.start, PIPE=subprocess.PIPE))
    return found


@pytest.fixture
def result_of(tmp_path: Path, write: Any) -> Callable[[str], Path]:
    """Aggregate three replicas by a method, and return the folder that is to be published."""

    def mean_error(candidates: Mapping[str, str]) -> dict[str, dict[str, float]]:
        found = {}
        for name, prefix in candidates.items():
            with BundleReader(prefix) as reader:
                found[name] = {"mae": abs(float(np.frombuffer(reader.read(b"w"), "f4").mean()) - 4)}
        return found

    def call(method: str) -> Path:
        noise = np.random.default_rng(0).normal(size=(3, 2_300_000)).astype("f4")
        values = dict(zip(METRICS, (1, 2, 6), strict=True))
        replicas = {
            name: write(f"{name}/ckpt-1", w=noise[n] + np.float32(values[name])) for n, name in enumerate(values)
        }
        folder = tmp_path / "aggregate"
        folder.mkdir()
        choices = Choices(method=method, metric="mae")
        candidates, name = Aggregation(choices, folder, mean_error).run(replicas, METRICS)
        assert name == {"best": "replica-1"}.get(method, method)
        return collect(candidates[name], tmp_path / "model")

    return call


def versions(count: int) -> list[str]:
    return [f"v=20260101T0000{number:02}Z-0a" for number in range(count)]


def send_ahead(place: Place, model: Path, fence: int) -> None:
    with Path("/dev/null").open("wb") as events:
        reporter = Reporter(events.fileno())
        ahead = Ahead(Uri.parse(place.destination), place.files, reporter, Patience(0.0, reporter.note), fence)
        ahead.send(model / DATA, DATA, (model / DATA).stat().st_size)


def pointer(place: Place) -> str:
    return read_all(place.files, f"{place.path}/_latest").decode()


def content(place: Place, version: str) -> dict[str, bytes]:
    path = f"{place.path}/{version}"
    return place.tree(path) if exists(place.files, path) else {}


def assert_published(place: Place, local: Path, manifest: PublishManifest, names: Sequence[str]) -> None:
    """Assert that the newest of ``names`` is whole and pointed to, and that nothing else lies beside them."""
    assert content(place, names[-1]) == whole(local, manifest, names[-1])
    assert pointer(place) == names[-1]
    assert place.names() == ["_latest", *names]


@pytest.mark.parametrize(("method", "points"), [("best", 20), ("average", 12), ("greedy_soup", 5)])
def test_a_publisher_killed_at_any_step_leaves_a_whole_version_or_none_and_the_next_try_publishes_once(
    method: str,
    points: int,
    request: pytest.FixtureRequest,
    result_of: Callable[[str], Path],
    chosen: Movers,
) -> None:
    model, base, names = result_of(method), base_uri("hdfs", request), versions(points + 2)
    files, moments, were_visible = describe(model), random.Random(7), list[bool]()

    def begin(version: str) -> tuple[Place, PublishManifest]:
        place = Place(base, version)
        if method == "average":
            send_ahead(place, model, fence=5)
        return place, PublishManifest(fence=5, digest=version, files=files)

    place, manifest = begin(names[0])
    publish_here(place, place.files, model, manifest)
    place, manifest = begin(names[1])
    steps = chosen.choose("kill", -1) / "steps"
    place.publish(model, manifest)
    place.files.delete(f"{place.path}/{names[0]}")
    total = len(steps.read_text().splitlines())
    assert (DATA in steps.read_text()) is (method != "average")  # that was sent before
    for number, version in enumerate(names[2:], 2):
        place, manifest = begin(version)
        step = int((number - 2 + moments.random()) * total / points)  # one in each part of the whole length
        chosen.choose("kill", step)
        with pytest.raises(StorageUnavailableError, match="killed by signal 9"):
            place.publish(model, manifest)
        assert len(steps.read_text().splitlines()) == step + 1
        visible = content(place, version)
        assert visible in ({}, whole(model, manifest, version))
        assert pointer(place) in ({names[number - 1], version} if visible else {names[number - 1]})
        were_visible.append(bool(visible))
        publish_here(place, place.files, model, manifest)
        assert_published(place, model, manifest, [names[number - 1], version])
        place.files.delete(f"{place.path}/{names[number - 1]}")
    assert set(were_visible) == {False, True}


PHASES = {
    "before the temporary folder": r"^make_dirs .*/\.airflow_tf-new-",
    "during the upload": r"^piece .*/ckpt-1\.data-",
    "before the manifest": r"^write .*/manifest\.json$",
    "before the rename": r"^rename .*/\.airflow_tf-new-",
    "after the rename": r"^stat .*/v=[^/]*/\.airflow_tf-new-",
    "before the pointer": r"^replace .*/_latest$",
}
RENAMED = {"after the rename", "before the pointer"}
HASTY_SECONDS, PATIENT_SECONDS = 6.0, 120.0


@pytest.fixture
def namenode(hdfs_cluster: HdfsCluster) -> Iterator[HdfsCluster]:
    """The cluster, whose NameNode a test may kill."""
    yield hdfs_cluster
    if not hdfs_cluster.runs("namenode"):
        hdfs_cluster.restart("namenode")


def publish_held(
    chosen: Movers, place: Place, local: Path, manifest: PublishManifest, phase: str, stall_seconds: float
) -> tuple[BaseException | None, float]:
    """Publish, held before a phase; return the error, and when it came."""
    chosen.choose("hold", PHASES[phase])
    error: BaseException | None = None
    try:
        place.publish(local, manifest, stall_seconds)
    except StorageUnavailableError as found:
        error = found
    return error, time.monotonic()


def test_a_namenode_killed_in_any_phase_of_a_publication_costs_time_or_the_try_but_no_result(
    request: pytest.FixtureRequest, namenode: HdfsCluster, local: Path, chosen: Movers
) -> None:
    manifest, (version,) = manifest_of(local), versions(1)
    tries = [(phase, seconds) for phase in PHASES for seconds in (HASTY_SECONDS, PATIENT_SECONDS)]
    places = {key: Place(base_uri("hdfs", request), version) for key in tries}
    with ThreadPoolExecutor(len(tries)) as pool, contextlib.ExitStack() as stack:
        stack.callback((chosen.folder / "go").touch)
        ends = {key: pool.submit(publish_held, chosen, places[key], local, manifest, *key) for key in tries}
        eventually(lambda: len(list(chosen.folder.glob("*/*.held"))) == len(tries), 90.0)
        namenode.kill("namenode")
        killed_at = time.monotonic()
        (chosen.folder / "go").touch()
        hasty = {phase: ends[phase, HASTY_SECONDS].result(60) for phase in PHASES}
        namenode.restart("namenode")  # in this thread: a process of the harness ends with the one that started it
        patient = {phase: ends[phase, PATIENT_SECONDS].result(60) for phase in PHASES}
    assert {phase: error for phase, (error, _) in patient.items()} == dict.fromkeys(PHASES)
    for phase, (error, ended_at) in hasty.items():
        base = places[phase, HASTY_SECONDS].base
        assert isinstance(error, StorageUnavailableError), phase
        assert base in str(error)
        assert ended_at - killed_at < HASTY_SECONDS + 4, phase  # the deadline, and a busy machine
        again = Place(base, version)  # a client without a connection to the NameNode that was killed
        assert content(again, version) == (whole(local, manifest, version) if phase in RENAMED else {}), phase
        publish_here(again, again.files, local, manifest)
        assert_published(again, local, manifest, [version])
        assert_published(Place(places[phase, PATIENT_SECONDS].base, version), local, manifest, [version])
