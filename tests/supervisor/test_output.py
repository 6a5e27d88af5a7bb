"""An attempt's output stays within its budget of disk, and those who follow it lose and double nothing."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_tf.core.states import AttemptState
from airflow_tf.supervisor import output as module
from airflow_tf.supervisor.output import OutputKeeper, hole_end, say
from airflow_tf.supervisor.results import log_tail
from airflow_tf.supervisor.tail import LogTail
from tests.supervisor.harness import Gang

MIB = 2**20
BUDGET = 4 * MIB
LINE_BYTES = 86


class Writer:
    """A program that writes numbered lines."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.count = 0
        self._noise = random.Random(1)

    def write(self, count: int) -> None:
        with self.path.open("ab") as file:
            for _ in range(count):
                file.write(b"%d %s\n" % (self.count, self._noise.randbytes(40).hex().encode()))
                self.count += 1


def number_of(line: str) -> int:
    return int(line.partition(" ")[0])


def used_bytes(folder: Path) -> int:
    return sum(path.stat().st_blocks * 512 for path in folder.iterdir())


def archived(path: Path) -> bytes:
    archives = sorted(path.parent.glob(f"{path.name}.*.gz"), key=lambda found: int(found.name.split(".")[-2]))
    return b"".join(gzip.decompress(found.read_bytes()) for found in archives)


def test_a_reader_that_keeps_up_gets_every_line_once_while_the_disk_stays_bounded(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    writer, keeper, lines = Writer(path), OutputKeeper(path, BUDGET), list[str]()
    tail = LogTail(path, lambda text: lines.extend(text.splitlines()))
    most = 0
    while writer.count < 200 * MIB // LINE_BYTES:
        writer.write(10_000)
        tail.forward()
        keeper.look()
        most = max(most, used_bytes(tmp_path))
    assert list(map(number_of, lines)) == list(range(writer.count))
    assert most < 1.5 * BUDGET
    assert log_tail(tmp_path, 1) == lines[-1]


def test_archives_and_file_together_hold_everything(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    writer, keeper = Writer(path), OutputKeeper(path, BUDGET)
    for _ in range(3):
        writer.write(12_000)
        keeper.look()
    end = hole_end(path)
    kept = archived(path) + path.read_bytes()[end:]
    assert [number_of(line) for line in kept.decode().splitlines()] == list(range(writer.count))
    assert path.read_bytes()[:end].count(0) == end


def test_a_reader_that_was_away_is_told_what_it_missed(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    writer, keeper, lines = Writer(path), OutputKeeper(path, BUDGET), list[str]()
    tail = LogTail(path, lambda text: lines.extend(text.splitlines()))
    writer.write(10)
    tail.forward()
    writer.write(60_000)
    keeper.look()
    tail.forward(final=True)
    seen = [number_of(line) for line in lines if not line.startswith("airflow_tf")]
    assert seen[:10] == list(range(10))
    assert seen[10:] == list(range(seen[10], writer.count))
    (note,) = [line for line in lines if line.startswith("airflow_tf")]
    assert "MiB of output are no longer here" in note
    assert "\0" not in "".join(lines)


def test_a_hole_made_while_a_reader_reads_is_not_taken_for_output(tmp_path: Path, monkeypatch: Any) -> None:
    path = tmp_path / "output.log"
    writer, keeper, lines = Writer(path), OutputKeeper(path, BUDGET), list[str]()
    writer.write(60_000)
    real = module._punch

    def read_first(descriptor: int, end: int) -> None:
        real(descriptor, end)
        LogTail(path, lines.append).forward()

    monkeypatch.setattr(module, "_punch", lambda *args: read_first(*args) if args[1] > 1 else real(*args))
    keeper.look()
    assert lines
    assert "\0" not in "".join(lines)


def test_output_faster_than_it_can_be_compressed_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    writer, keeper = Writer(path), OutputKeeper(path, BUDGET)
    writer.write(200_000)
    keeper.look()
    assert used_bytes(tmp_path) < BUDGET
    assert len(archived(path)) == BUDGET // 4


def test_a_line_longer_than_a_block_is_cut_rather_than_kept_for_ever(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_bytes(b"x" * BUDGET)
    OutputKeeper(path, BUDGET).look()
    assert hole_end(path) == BUDGET - BUDGET // 4


def test_a_file_system_without_holes_leaves_the_output_alone_and_says_so_once(
    tmp_path: Path, monkeypatch: Any, caplog: Any
) -> None:
    path = tmp_path / "output.log"

    def refuse(descriptor: int, end: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(module, "_punch", refuse)
    writer, keeper = Writer(path), OutputKeeper(path, BUDGET)
    for _ in range(3):
        writer.write(20_000)
        keeper.look()
    assert hole_end(path) == 0
    assert archived(path) == b""
    assert sum("cannot free a part of a file" in record.message for record in caplog.records) == 1


def test_a_line_of_ours_is_appended(tmp_path: Path) -> None:
    path = tmp_path / "output.log"
    path.write_text("theirs\n")
    say(path, "ours")
    assert path.read_text() == "theirs\nairflow_tf: ours\n"


@pytest.mark.usefixtures("no_processes_left")
def test_a_flood_of_lines_reaches_the_view_whole(make_gang: Callable[..., Gang]) -> None:
    count = 200_000
    watch = make_gang().start(f"for i in range({count}): print(i, 'x' * 60)")
    assert watch.end().state is AttemptState.SUCCEEDED
    lines = [line for text in watch.lines for line in text.splitlines()]
    assert list(map(number_of, lines)) == list(range(count))
    assert len(watch.lines) < count / 50
