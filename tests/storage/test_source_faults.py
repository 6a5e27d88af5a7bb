"""Sources on a real HDFS that change, vanish or have impossible times, and copies of them that were damaged."""

from __future__ import annotations

import getpass
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from airflow_tf.core.errors import SourceChangedError, StorageNotFoundError
from airflow_tf.core.manifest import StagedInput
from airflow_tf.storage.base import FileSystem, Uri
from airflow_tf.storage.cache import Cache, boot_id
from airflow_tf.storage.hdfs import HdfsFileSystem
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.progress import Patience, Reporter
from airflow_tf.storage.staging import Stager
from airflow_tf.testing.hdfs import HdfsCluster
from tests.storage.storage_helpers import Staging, eventually

pytestmark = pytest.mark.hdfs

TEN_YEARS_MS = 10 * 365 * 86_400_000
KINDS = ("hdfs", "webhdfs")


def base_uri(kind: str, cluster: HdfsCluster) -> str:
    return cluster.uri if kind == "hdfs" else cluster.webhdfs_url.replace("http", "webhdfs")


def webhdfs(cluster: HdfsCluster, verb: str, path: str, **query: Any) -> None:
    parameters = query | {"user.name": getpass.getuser()}
    answer = requests.request(verb, f"{cluster.webhdfs_url}/webhdfs/v1{path}", params=parameters, timeout=20)
    assert answer.ok, answer.text


@pytest.fixture
def paused(hdfs_cluster: HdfsCluster) -> Iterator[Callable[[], None]]:
    """Pauses all DataNodes and returns what lets them go on."""
    names = [name for name in hdfs_cluster.names if name.startswith("datanode")]

    def resume() -> None:
        for name in names:
            hdfs_cluster.resume(name)

    for name in names:
        hdfs_cluster.pause(name)
    yield resume
    resume()
    hdfs_cluster.wait_ready()


@pytest.fixture(params=[100_000, 100])
def twenty(request: pytest.FixtureRequest, hdfs: FileSystem, folder: str) -> dict[str, bytes]:
    """More files than are copied at once, large or small ones; the last ones are the smallest, and the last to be read."""
    content = {f"{number:02}.csv": b"%02d" % number * (request.param - number) for number in range(20)}
    for name, data in content.items():
        hdfs.write(f"{folder}/{name}", [data])
    return content


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_vanishes_between_listing_and_reading_is_named(
    kind: str,
    hdfs_cluster: HdfsCluster,
    hdfs: FileSystem,
    folder: str,
    twenty: dict[str, bytes],
    staging: Staging,
    paused: Callable[[], None],
) -> None:
    uri, errors = f"{base_uri(kind, hdfs_cluster)}{folder}", list[StorageNotFoundError]()

    def stage() -> None:
        try:
            staging(uri, stall_seconds=150.0)
        except StorageNotFoundError as error:
            errors.append(error)

    thread = threading.Thread(target=stage)
    thread.start()
    eventually(lambda: any("staging 20 files" in line for line in staging.lines))  # they wait for their bytes now
    hdfs.delete(f"{folder}/19.csv")
    paused()
    thread.join()
    assert f"{folder}/19.csv" in str(errors[0])
    assert not (staging.folder / "run" / "data").exists()
    staged = staging(uri)
    del twenty["19.csv"]
    assert {file.name: (Path(staged.folder) / file.name).read_bytes() for file in staged.files} == twenty
    assert staging.partial() == []


class Appending(HdfsFileSystem):
    """HDFS, on which a writer appends to a file when its first bytes were read, in the first ``times`` reads."""

    times = 1

    def read(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        grows, self.times = self.times > 0, self.times - 1
        for chunk in super().read(path, offset, length):
            yield chunk
            if grows:
                grows = False
                with self._client.append(path) as writer:
                    writer.write(b"more")


@pytest.mark.parametrize("times", [1, 2])
def test_a_file_that_grows_while_it_is_read_is_copied_again_once(
    times: int, hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str, staging: Staging
) -> None:
    data = os.urandom(2**20)
    hdfs.write(f"{folder}/1.csv", [data] * 9)  # ends within a block, to which the writer appends
    uri = Uri.parse(f"{hdfs_cluster.uri}{folder}")
    options = StorageOptions.from_uri(str(uri))
    files = Appending(uri, options)
    files.times = times

    def stage() -> StagedInput:
        with Path(os.devnull).open("wb") as events:
            reporter = Reporter(events.fileno())
            cache = Cache(staging.cache_dir, 2**30, boot_id(), reporter.tick)
            patience = Patience(20.0, reporter.note)
            return Stager(uri, options, files, cache, reporter, patience).run(staging.folder / "run" / "data")

    if times == 1:
        staged = stage()
    else:
        with pytest.raises(SourceChangedError, match="changed while it was read"):
            stage()
        assert staging.cached() == []
        staged = staging(str(uri))
    assert (Path(staged.folder) / "1.csv").read_bytes() == data * 9 + b"more" * times
    assert len(staging.cached()) == 1
    assert staging.partial() == []


@pytest.mark.parametrize("shift_ms", [TEN_YEARS_MS, -TEN_YEARS_MS])
@pytest.mark.parametrize("kind", KINDS)
def test_clocks_that_differ_do_no_harm(
    kind: str, shift_ms: int, hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str, staging: Staging
) -> None:
    now = int(time.time() * 1000)
    uri = f"{base_uri(kind, hdfs_cluster)}{folder}"
    hdfs.write(f"{folder}/1.csv", [b"old"])
    webhdfs(hdfs_cluster, "PUT", f"{folder}/1.csv", op="SETTIMES", modificationtime=now + shift_ms)
    assert staging(uri).files[0].mtime_ms == now + shift_ms
    assert staging(uri, run="again").cached_bytes == 3
    # The next version has another time, be it an older one than before: what counts is that it differs.
    hdfs.write(f"{folder}/1.csv", [b"new"])
    webhdfs(hdfs_cluster, "PUT", f"{folder}/1.csv", op="SETTIMES", modificationtime=now + shift_ms - 1000)
    staged = staging(uri, run="third")
    assert staged.copied_bytes == 3
    assert (Path(staged.folder) / "1.csv").read_bytes() == b"new"


def flip_a_byte(path: Path) -> Path:
    data = bytearray(path.read_bytes())
    data[500] ^= 0xFF
    path.chmod(0o644)
    path.write_bytes(data)
    path.chmod(0o444)
    return path


def flip_a_byte_before_a_boot(path: Path) -> None:
    """As the disk does: nothing tells that the file was written to, but its bytes have changed."""
    times = path.stat()
    flip_a_byte(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    path.rename(path.with_suffix(".00000000"))


def cut(path: Path) -> None:
    path.chmod(0o644)
    os.truncate(path, 300)


@pytest.mark.parametrize("damage", [flip_a_byte, flip_a_byte_before_a_boot, cut, Path.unlink])
def test_a_damaged_copy_in_the_cache_is_replaced(
    damage: Callable[[Path], object], hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str, staging: Staging
) -> None:
    data = os.urandom(10_000)
    hdfs.write(f"{folder}/1.csv", [data])
    uri = f"{hdfs_cluster.uri}{folder}"
    staging(uri)
    damage(staging.cached()[0])
    staged = staging(uri, run="second")
    assert staged.copied_bytes == len(data)
    assert (Path(staged.folder) / "1.csv").read_bytes() == data
    assert [path.read_bytes() for path in staging.cached()] == [data]
    assert staging.partial() == []


def test_a_program_that_writes_into_its_input_does_not_change_that_of_others(
    hdfs_cluster: HdfsCluster, hdfs: FileSystem, folder: str, staging: Staging
) -> None:
    hdfs.write(f"{folder}/1.csv", [b"1,2\n" * 300])
    uri = f"{hdfs_cluster.uri}{folder}"
    file = Path(staging(uri).folder) / "1.csv"
    flip_a_byte(file)  # root may, although the file is read-only
    assert (Path(staging(uri, run="other").folder) / "1.csv").read_bytes() == b"1,2\n" * 300
    assert (Path(staging(uri).folder) / "1.csv").read_bytes() == b"1,2\n" * 300  # nor that of its own next try
