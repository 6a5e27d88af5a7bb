"""Two publishers of one version at once, and a NameNode that goes away in a phase of the publication."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_tf.core.errors import AirflowTfError
from airflow_tf.core.manifest import PublishManifest
from airflow_tf.storage import client
from airflow_tf.storage.progress import Patience
from airflow_tf.testing.hdfs import HdfsCluster
from tests.storage.test_publish import Place, local, manifest_of, on_hdfs, place, whole

__all__ = ["local", "on_hdfs", "place"]  # fixtures


def publish(
    place: Place, local: Path, manifest: PublishManifest, confirm: Callable[[], object]
) -> AirflowTfError | None:
    try:
        client.publish(
            local,
            place.destination,
            options=place.options,
            manifest=manifest,
            on_progress=lambda _text: None,
            confirm=lambda: (confirm(), None)[1],
        )
    except AirflowTfError as error:
        return error
    return None


@pytest.mark.parametrize("fences", [(5, 5), (5, 6)])
def test_of_two_publishers_at_once_one_wins_and_the_other_tells(
    place: Place, local: Path, fences: tuple[int, int]
) -> None:
    both = threading.Barrier(2)

    def meet() -> None:
        with contextlib.suppress(threading.BrokenBarrierError):  # the other one may have failed before
            both.wait(5)

    manifests = [manifest_of(local, fence=fence, digest=f"result {n}") for n, fence in enumerate(fences)]
    with ThreadPoolExecutor(2) as pool:
        futures = [pool.submit(publish, place, local, manifest, meet) for manifest in manifests]
        errors = [future.result() for future in futures]
    visible = {name: data for name, data in place.tree().items() if not name.startswith(".")}
    assert visible in [whole(local, manifest) for manifest in manifests]
    winner = manifests[0] if visible == whole(local, manifests[0]) else manifests[1]
    assert errors[manifests.index(winner)] is None
    if winner.fence == fences[0]:  # else the newer one may have come after the older one, and replaced it
        assert errors[1 - manifests.index(winner)] is not None


@pytest.mark.hdfs
@pytest.mark.parametrize("phase", ["before it begins", "when all is sent"])
def test_a_namenode_that_restarts_delays_a_publication(
    on_hdfs: Place, local: Path, hdfs_cluster: HdfsCluster, phase: str
) -> None:
    manifest, sent, gone = manifest_of(local), threading.Event(), threading.Event()

    def confirm() -> None:
        sent.set()
        assert gone.wait(60)

    if phase == "before it begins":
        hdfs_cluster.kill("namenode")
        gone.set()
    with ThreadPoolExecutor(1) as pool:
        publication = pool.submit(publish, on_hdfs, local, manifest, confirm)
        if phase == "when all is sent":
            assert sent.wait(60)
            hdfs_cluster.kill("namenode")
            gone.set()
        hdfs_cluster.restart("namenode")  # in this thread: a process of the harness ends with the one that started it
        assert publication.result() is None
    patience = Patience(30.0, print)  # this process still has a connection to the NameNode that was killed
    assert patience(on_hdfs.tree) == whole(local, manifest)
