"""Shares of replicas: everything in exactly one of them, by files, lines or records."""

from __future__ import annotations

import multiprocessing
import os
import struct
import tempfile
from pathlib import Path
from typing import Any

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tf.core.checkpoint.wire import mask
from airflow_tf.core.errors import DeclarationError, InputError, StorageNoSpaceError
from airflow_tf.core.manifest import StagedFile, StagedInput
from airflow_tf.storage import sharding
from airflow_tf.storage.sharding import plan_shares, shard
from airflow_tf.transfers.hdfs_to_local import HdfsToLocalOperator
from tests.storage.storage_helpers import task_context
from tests.storage.test_plan import SIZES, staged


def record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    crcs = (struct.pack("<I", mask(google_crc32c.value(part))) for part in (length, data))
    return length + next(crcs) + data + next(crcs)


def records(content: bytes) -> list[bytes]:
    found = []
    while content:
        length = struct.unpack_from("<Q", content)[0]
        found.append(content[12 : 12 + length])
        assert record(found[-1]) == content[: 16 + length]
        content = content[16 + length :]
    return found


def write(folder: Path, contents: dict[str, bytes]) -> StagedInput:
    """Write files as if they had been staged."""
    files = []
    for name, content in contents.items():
        path = folder / "staged" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        files.append(StagedFile(f"hdfs://nn/{name}", name, len(content), 1, google_crc32c.value(content)))
    return StagedInput("hdfs://nn/", str(folder / "staged"), tuple(files))


def shares_of(given: StagedInput, count: int, way: str, folder: Path) -> list[dict[str, bytes]]:
    """Return name -> content of each replica's folder."""
    folders = [shard(given, index, count, folder / f"{index}-of-{count}", way) for index in range(count)]
    return [
        {str(path.relative_to(one)): path.read_bytes() for path in sorted(one.rglob("*")) if path.is_file()}
        for one in folders
    ]


def refused(given: StagedInput, count: int, way: str) -> bool:
    """Tell whether there is not enough for everyone."""
    try:
        plan_shares(given, count, way)
    except DeclarationError as error:
        return "would get nothing" in str(error)
    return False


@given(SIZES, st.integers(1, 20))
def test_every_file_has_one_replica_and_no_two_shares_differ_by_more_than_a_file(
    sizes: dict[str, int], count: int
) -> None:
    if len(sizes) < count:
        with pytest.raises(DeclarationError, match=f"cannot be shared among {count} replicas"):
            plan_shares(staged(sizes), count, "files")
        return
    shares = plan_shares(staged(sizes), count, "files")
    assert sorted(part.name for share in shares for part in share) == sorted(sizes)
    loads = [sum(max(part.size, 1) for part in share) for share in shares]
    assert max(loads) - min(loads) <= max(*sizes.values(), 1)
    assert all(shares)


LINES = st.lists(st.text("ab\u00e9,\r", max_size=9).map(lambda text: text.encode() + b"\n"), max_size=12)
TEXTS = st.dictionaries(
    st.sampled_from(["1.csv", "2.csv", "a/3.csv"]),
    st.tuples(LINES, st.sampled_from([b"", b"no end"])).map(lambda pair: b"".join(pair[0]) + pair[1]),
    min_size=1,
)


@given(TEXTS, st.integers(1, 6), st.booleans())
def test_every_line_is_in_exactly_one_share_in_order(texts: dict[str, bytes], count: int, has_header: bool) -> None:
    head = b"\xef\xbb\xbfx,y\r\n" if has_header else b""
    way = "lines_with_header" if has_header else "lines"
    with tempfile.TemporaryDirectory() as scratch:
        given = write(Path(scratch), {name: head + text for name, text in texts.items()})
        longest = max(len(line) + 1 for text in texts.values() for line in text.split(b"\n"))
        if refused(given, count, way):
            assert sum(map(len, texts.values())) < count * longest  # with more, each has some
            return
        shares = shares_of(given, count, way, Path(scratch))
    assert all(content.startswith(head) for share in shares for content in share.values())
    for name, text in texts.items():
        parts = [share[name].removeprefix(head) for share in shares if name in share]
        assert b"".join(parts) == text
        assert all(part.endswith(b"\n") for part in parts[:-1])
    assert all(share.values() for share in shares)


@given(
    st.dictionaries(st.sampled_from("123"), st.lists(st.binary(max_size=40), max_size=9), min_size=1), st.integers(1, 5)
)
def test_every_record_is_in_exactly_one_share_in_order(files: dict[str, list[bytes]], count: int) -> None:
    nested = {name: [record(one) for one in found] for name, found in files.items()}  # data that look like records
    with tempfile.TemporaryDirectory() as scratch:
        given = write(Path(scratch), {name: b"".join(map(record, found)) for name, found in nested.items()})
        if refused(given, count, "records"):
            longest = max(len(record(one)) for found in nested.values() for one in [*found, b""])
            assert given.total_bytes < count * longest
            return
        shares = shares_of(given, count, "records", Path(scratch))
    for name, found in nested.items():
        assert [one for share in shares for one in records(share.get(name, b""))] == found


def test_shares_are_of_nearly_the_same_size_and_only_what_is_cut_is_copied(tmp_path: Path) -> None:
    given = write(tmp_path, {"1.csv": b"12345678\n" * 1000, "2.csv": b"12345678\n" * 500})
    shares = shares_of(given, 3, "lines", tmp_path)
    assert [{name: len(content) for name, content in share.items()} for share in shares] == [
        {"1.csv": 4500},
        {"1.csv": 4500},
        {"2.csv": 4500},
    ]
    assert (tmp_path / "2-of-3" / "2.csv").samefile(tmp_path / "staged" / "2.csv")
    assert (tmp_path / "0-of-3" / "1.csv").stat().st_mode & 0o222 == 0


def test_a_share_is_left_to_its_readers_until_the_input_is_another(tmp_path: Path) -> None:
    given = write(tmp_path, {"1.csv": b"1\n2\n3\n4\n"})
    folder = shard(given, 1, 2, tmp_path / "share", "lines")
    before = folder.stat().st_ino
    assert shard(given, 1, 2, folder, "lines").stat().st_ino == before
    (tmp_path / "staged" / "1.csv").unlink()
    shard(write(tmp_path, {"1.csv": b"5\n6\n7\n8\n"}), 1, 2, folder, "lines")
    assert (folder / "1.csv").read_bytes() == b"7\n8\n"


def take_bytes(path: Path) -> None:
    """Leave zeros, as a power cut does to what was not flushed."""
    path.chmod(0o600)
    path.write_bytes(bytes(path.stat().st_size))


def test_a_part_whose_bytes_a_power_cut_took_is_copied_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = write(tmp_path, {"1.csv": b"1\n2\n3\n4\n"})
    before = shares_of(given, 2, "lines", tmp_path)
    for path in tmp_path.glob("?-of-2/*"):
        take_bytes(path)
    monkeypatch.setattr(sharding, "boot_id", lambda: "after")
    assert shares_of(given, 2, "lines", tmp_path) == before


def test_a_share_follows_a_staged_file_that_was_damaged_and_staged_anew(tmp_path: Path) -> None:
    contents = {"1.csv": b"1\n2\n", "2.csv": b"5\n6\n"}
    before = shares_of(write(tmp_path, contents), 2, "files", tmp_path)
    (tmp_path / "staged" / "1.csv").rename(tmp_path / "damaged")  # the share still links to it
    take_bytes(tmp_path / "damaged")
    assert shares_of(write(tmp_path, contents), 2, "files", tmp_path) == before


def fill_at_once(given: StagedInput, folder: Path, start: Any, answers: Any) -> None:
    """Fill a share when all others do, and tell which folder it was and what was in it."""
    start.wait(60)
    try:
        shard(given, 0, 2, folder, "lines")
        names = sorted(path.name for path in folder.iterdir())
        answers.put((folder.stat().st_ino, names))
    except OSError as error:
        answers.put(error)


def test_processes_that_fill_one_share_at_once_make_it_once(tmp_path: Path) -> None:
    given = write(tmp_path, {f"{number:03}.csv": b"12345678\n" * 1000 for number in range(200)})
    context = multiprocessing.get_context("fork")
    start, answers = context.Barrier(4), context.Queue()
    processes = [
        context.Process(target=fill_at_once, args=(given, tmp_path / "share", start, answers)) for _ in range(4)
    ]
    for process in processes:
        process.start()
    found = [answers.get(timeout=60) for _ in processes]
    for process in processes:
        process.join()
    assert found == [((tmp_path / "share").stat().st_ino, [f"{number:03}.csv" for number in range(100)])] * 4


@pytest.mark.parametrize(
    ("content", "way", "why"),
    [
        (b"\x1f\x8b" + bytes(30), "lines", r"1 cannot be split: it is compressed \(GZIP\)"),
        (record(b"x") * 9, "lines", "cannot be split at lines: it is a TFRecord file. Write `shard: records`"),
        (b"a,b\n" * 9, "records", "cannot be split at records: it is no TFRecord file"),
        ("a,b\n".encode("utf-16"), "lines", "it is UTF-16 text"),
        (b"a,b\n1,2\n", "lines_with_header", "replica 1 would get nothing: it has too few lines"),
        (b"a,b\r1,2\r3,4", "lines", "replica 1 would get nothing"),
        (b"", "lines", "replica 0 would get nothing"),
        (b"a\nb\n", "rows", "inputs cannot be shared by 'rows'"),
    ],
)
def test_what_cannot_be_cut_is_refused_before_devices_are_reserved(
    content: bytes, way: str, why: str, tmp_path: Path
) -> None:
    with pytest.raises(DeclarationError, match=why):
        plan_shares(write(tmp_path, {"1": content}), 2, way)


@pytest.mark.parametrize(("content", "way"), [(b"\x1f\x8b" + bytes(30), "lines"), (b"a,b\n" * 9, "records")])
def test_what_cannot_be_cut_is_refused_for_a_single_replica_too(
    content: bytes, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__AIRFLOW_TF__HOME", str(tmp_path / "home"))
    (tmp_path / "1").write_bytes(content)
    operator = HdfsToLocalOperator(task_id="stage", source=(tmp_path / "1").as_uri(), shard=way)
    with pytest.raises(DeclarationError, match="cannot be split"):
        operator.execute(task_context())


def test_a_damaged_record_is_named(tmp_path: Path) -> None:
    content = bytearray(record(b"abc") * 9)
    content[len(record(b"abc")) * 2] ^= 1
    with pytest.raises(InputError, match=f"1:2:{len(record(b'abc')) * 2}: the record is damaged"):
        plan_shares(write(tmp_path, {"1": bytes(content)}), 2, "records")


def test_a_disk_that_cannot_hold_a_part_says_so_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = write(tmp_path, {"1.csv": b"1\n2\n3\n4\n"})

    def full(_file: int, _offset: int, _length: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(StorageNoSpaceError, match=r"too small for a part of 1\.csv"):
        shard(given, 0, 2, tmp_path / "share", "lines")
    assert {path.name for path in tmp_path.iterdir()} == {"staged", ".share.lock"}
