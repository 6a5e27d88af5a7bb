"""Staging through a real mover process, from local folders."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from airflow_tf.core.errors import (
    DeclarationError,
    SourceChangedError,
    StorageError,
    StorageNoSpaceError,
    StorageNotFoundError,
)
from airflow_tf.core.manifest import StagedInput
from airflow_tf.storage import client
from airflow_tf.storage.base import Uri
from airflow_tf.storage.cache import Cache, boot_id, free_bytes
from airflow_tf.storage.local import LocalFileSystem
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.progress import Patience, Reporter
from airflow_tf.storage.sharding import shard
from airflow_tf.storage.staging import Stager, manifest_path
from airflow_tf.transfers.hdfs_to_local import HdfsToLocalOperator
from tests.storage.storage_helpers import Staging, task_context


def fill(folder: Path, sizes: dict[str, int]) -> None:
    for name, size in sizes.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(os.urandom(size))


def test_a_folder_is_staged_with_sizes_and_checksums(staging: Staging, source: Path) -> None:
    fill(source, {"a/1.csv": 2_500_000, "a/2.csv": 0, "b.csv": 7, "_SUCCESS": 0})
    staged = staging(source.as_uri())
    assert [file.name for file in staged.files] == ["a/1.csv", "b.csv"]
    for file in staged.files:
        data = (source / file.name).read_bytes()
        assert (Path(staged.folder) / file.name).read_bytes() == data
        assert (file.size, file.crc32c) == (len(data), google_crc32c.value(data))
        assert file.source == (f"file://{source}/{file.name}")
    assert staged.skipped == ("_SUCCESS", "a/2.csv")
    assert (staged.copied_bytes, staged.cached_bytes) == (2_500_007, 0)
    assert staged.summary()["files"] == 2
    assert staging.lines == [
        "left out: 1 files that Hadoop writes beside data, such as _SUCCESS; 1 files that are empty, such as a/2.csv",
        "staging 2 files, 2.4 MiB, of which 2.4 MiB are not in the cache",
    ]


def test_a_task_stages_several_sources_as_one_input(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__AIRFLOW_TF__HOME", str(tmp_path / "home"))
    fill(source, {"a.csv": 9})
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "x.csv").write_bytes(b"1\n")
    names = [source.as_uri(), (tmp_path / "more" / "*.csv").as_uri()]
    result = HdfsToLocalOperator(task_id="stage", source=names).execute(task_context())
    assert result["source"] == ",".join([source.as_uri(), f"file://{tmp_path}/more/*.csv"])
    assert (Path(result["folder"]) / "more" / "x.csv").read_bytes() == b"1\n"
    staged = StagedInput.loads(Path(result["manifest"]).read_text())
    assert {file.name.partition("/")[0] for file in staged.files} == {source.name, "more"}


def test_a_second_run_takes_all_from_the_cache(staging: Staging, source: Path) -> None:
    fill(source, {"1": 1000, "2": 1000})
    staging(source.as_uri())
    again = staging(source.as_uri(), run="second")
    assert (again.copied_bytes, again.cached_bytes) == (0, 2000)


def test_the_same_run_does_not_look_at_the_source_again(staging: Staging, source: Path) -> None:
    fill(source, {"1": 1000})
    first = staging(source.as_uri())
    (source / "1").unlink()
    assert staging(source.as_uri()) == first
    with pytest.raises(StorageNotFoundError):
        staging(source.as_uri(), refresh=True)


def test_a_missing_link_or_another_source_is_staged_anew(staging: Staging, source: Path) -> None:
    fill(source, {"1": 1000, "2": 10})
    first = staging(source.as_uri())
    (Path(first.folder) / "1").unlink()
    assert (Path(staging(source.as_uri()).folder) / "1").stat().st_size == 1000
    assert [file.name for file in staging((source / "2").as_uri()).files] == ["2"]
    assert [path.name for path in Path(first.folder).iterdir()] == ["2"]


def test_refreshing_an_unchanged_source_leaves_the_folder_to_its_readers(staging: Staging, source: Path) -> None:
    fill(source, {"1": 1000})
    folder = Path(staging(source.as_uri()).folder)
    before = folder.stat().st_ino
    staging(source.as_uri(), refresh=True)
    assert folder.stat().st_ino == before
    fill(source, {"1": 1001})
    staging(source.as_uri(), refresh=True)
    assert (folder / "1").read_bytes() == (source / "1").read_bytes()


def test_a_failure_leaves_neither_folder_nor_manifest(staging: Staging, source: Path) -> None:
    fill(source, {"1": 1000})
    os.mkfifo(source / "pipe")
    with pytest.raises(StorageError, match=r"pipe: it is not a regular file"):
        staging(f"{source.as_uri()}/pipe")
    assert [path.name for path in (staging.folder / "run").iterdir()] == [".data.lock"]
    assert staging.partial() == []


def test_a_disk_that_cannot_hold_it_is_refused_before_the_first_byte(staging: Staging, source: Path) -> None:
    with (source / "sparse").open("wb") as file:
        file.truncate(free_bytes(source) + 2**30)
    with pytest.raises(StorageNoSpaceError, match=r"GiB are needed, .* are free"):
        staging(source.as_uri())
    assert staging.cached() == []
    assert staging.partial() == []


def test_what_is_no_uri_is_refused_before_a_process_starts(staging: Staging) -> None:
    with pytest.raises(DeclarationError, match="not a storage URI"):
        staging("/data/x.csv", options=StorageOptions("file"))


def test_eight_runs_of_one_input_at_once_copy_it_once(staging: Staging, source: Path) -> None:
    fill(source, {"1": 30_000_000, "2": 5_000_000})
    results: list[Any] = []

    def run(number: int) -> None:
        results.append(staging(source.as_uri(), run=f"run{number}", cache_bytes=1000))

    threads = [threading.Thread(target=run, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    for staged in results:
        for file in staged.files:
            assert google_crc32c.value((Path(staged.folder) / file.name).read_bytes()) == file.crc32c
    assert sum(staged.copied_bytes for staged in results) == 35_000_000
    assert staging.partial() == []


def test_eight_stagers_of_one_folder_at_once_agree(staging: Staging, source: Path) -> None:
    fill(source, {"1": 1_000_000})
    results: list[Any] = []
    threads = [threading.Thread(target=lambda: results.append(staging(source.as_uri()))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 8
    assert len({staged.dumps() for staged in results}) == 1


def test_eviction_never_takes_what_a_run_still_reads(staging: Staging, source: Path) -> None:
    fill(source, {"a": 60_000, "b": 60_000})
    first = staging((source / "a").as_uri(), run="first", cache_bytes=100_000)
    staging((source / "b").as_uri(), run="second", cache_bytes=100_000)
    assert (Path(first.folder) / "a").read_bytes() == (source / "a").read_bytes()
    assert len(staging.cached()) == 2
    (Path(first.folder) / "a").unlink()
    fill(source, {"c": 10_000})
    staging((source / "c").as_uri(), run="third", cache_bytes=100_000)
    assert sorted(path.stat().st_size for path in staging.cached()) == [10_000, 60_000]


class Growing(LocalFileSystem):
    """A file that its writer appends to while it is read, ``times`` times."""

    times = 1

    def read(self, path: str, offset: int, length: int):
        yield from super().read(path, offset, length)
        if self.times:
            self.times -= 1
            with Path(path).open("ab") as file:
                file.write(b"more")


@pytest.mark.parametrize("times", [1, 2])
def test_a_source_that_changes_meanwhile_is_copied_again_once(tmp_path: Path, source: Path, times: int) -> None:
    (source / "1").write_bytes(b"start")
    uri = Uri.parse(source.as_uri())
    files = Growing(uri, StorageOptions("file"))
    files.times = times
    with Path(os.devnull).open("wb") as events:
        reporter = Reporter(events.fileno())
        stager = Stager(
            uri=uri,
            options=StorageOptions("file"),
            files=files,
            cache=Cache(tmp_path / "cache", 1000, boot_id(), reporter.tick),
            reporter=reporter,
            patience=Patience(0.0, reporter.note),
        )
        if times == 1:
            assert [file.size for file in stager.run(tmp_path / "run" / "data").files] == [9]
            assert (tmp_path / "run" / "data" / "1").read_bytes() == b"startmore"
            return
        with pytest.raises(SourceChangedError, match="changed while it was read"):
            stager.run(tmp_path / "run" / "data")
    assert not (tmp_path / "run" / "data").exists()
    assert not manifest_path(tmp_path / "run" / "data").exists()


def test_shards_are_disjoint_even_and_stable(staging: Staging, source: Path, tmp_path: Path) -> None:
    fill(source, {"a/1": 50, "a/2": 40, "b/3": 30, "b/4": 20, "5": 10, "6": 0})
    staged = staging(source.as_uri())
    folders = [shard(staged, index, 2, tmp_path / "shards" / f"{index}-of-2") for index in range(2)]
    shares = [{str(p.relative_to(f)): p.stat().st_size for p in f.rglob("*") if p.is_file()} for f in folders]
    assert shares[0].keys() | shares[1].keys() == {file.name for file in staged.files}
    assert not shares[0].keys() & shares[1].keys()
    assert [sum(share.values()) for share in shares] == [80, 70]
    before = folders[0].stat().st_ino
    shard(staged, 0, 2, folders[0])
    assert folders[0].stat().st_ino == before
    (folders[0] / "stranger").write_bytes(b"x")
    shard(staged, 0, 2, folders[0])
    assert not (folders[0] / "stranger").exists()


def test_fewer_files_than_replicas_is_an_error(staging: Staging, source: Path, tmp_path: Path) -> None:
    fill(source, {"1": 10, "2": 10})
    staged = staging(source.as_uri())
    with pytest.raises(DeclarationError, match="cannot be shared among 3 replicas: it has 2 files"):
        shard(staged, 0, 3, tmp_path / "shard")


def test_progress_is_a_line_for_people() -> None:
    counts = {"files": 3, "total_files": 10, "bytes": 50 * 2**20, "total_bytes": 200 * 2**20}
    line = client.describe_progress(counts, 10.0)
    assert line == "3 of 10 files, 50.0 MiB of 200.0 MiB, 5.2 MB/s, about 30 s left"


def test_fewer_files_than_replicas_are_refused_when_they_are_staged(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__AIRFLOW_TF__HOME", str(tmp_path / "home"))
    fill(source, {"1": 10})
    operator = HdfsToLocalOperator(task_id="stage", source=source.as_uri(), replicas=2)
    with pytest.raises(DeclarationError, match="cannot be shared among 2 replicas: it has 1 files"):
        operator.execute(task_context())
