"""Following a growing file: every line once, in order."""

from __future__ import annotations

from pathlib import Path

from airflow_tf.supervisor.results import last_step
from airflow_tf.supervisor.tail import LogTail, OutputTail


def test_a_missing_file_is_no_error_and_lines_come_once(tmp_path: Path) -> None:
    seen: list[str] = []
    path = tmp_path / "output.log"
    tail = LogTail(path, seen.append)
    tail.forward()
    path.write_text("one\ntwo\nthr")
    tail.forward()
    assert seen == ["one", "two"]
    with path.open("a") as file:
        file.write("ee\nfour")
    tail.forward()
    tail.forward()
    assert seen == ["one", "two", "three"]
    tail.forward(final=True)
    tail.forward(final=True)
    assert seen == ["one", "two", "three", "four"]


def test_a_flood_is_forwarded_in_blocks_without_loss(tmp_path: Path) -> None:
    seen: list[str] = []
    path = tmp_path / "output.log"
    lines = [f"line {number} " + "x" * 50 for number in range(20_000)]
    path.write_text("\n".join(lines) + "\n")
    LogTail(path, seen.append).forward(final=True)
    assert [line for block in seen for line in block.split("\n")] == lines
    assert len(seen) < 100


def test_bytes_that_are_no_text_do_not_stop_it(tmp_path: Path) -> None:
    seen: list[str] = []
    path = tmp_path / "output.log"
    path.write_bytes(b"caf\xe9\r\nnext\n")
    LogTail(path, seen.append).forward()
    assert seen == ["caf\ufffd", "next"]


def test_the_last_step_is_read_from_the_end_of_the_metrics(tmp_path: Path) -> None:
    assert last_step(tmp_path) is None
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {step}, "mae": 1.0}}\n' for step in range(5000)) + "no json\n")
    assert last_step(tmp_path) == 4999


def write_attempt(folder: Path, attempt: int, text: str) -> None:
    path = folder / f"attempt-{attempt}" / "output.log"
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(text)


def test_attempts_follow_one_another_and_a_position_hands_over_without_loss_or_repetition(tmp_path: Path) -> None:
    seen: list[str] = []
    write_attempt(tmp_path, 1, "one\ntw")
    first = OutputTail(tmp_path, seen.append)
    first.forward(1)
    assert first.position == (1, 4)
    write_attempt(tmp_path, 1, "o\nopen end")
    write_attempt(tmp_path, 3, "three\n")  # attempt 2 never wrote
    second = OutputTail(tmp_path, seen.append, first.position)
    second.forward(3)
    second.forward(3, final=True)
    assert seen == ["one", "two", "open end", "three"]
    assert second.position == (3, 6)


def test_a_limit_is_a_pause_not_a_loss(tmp_path: Path) -> None:
    seen: list[str] = []
    lines = [f"line {number}" for number in range(100_000)]
    write_attempt(tmp_path, 1, "\n".join(lines) + "\n")
    tail = OutputTail(tmp_path, seen.append)
    tail.forward(1, limit_bytes=1)
    assert 0 < len("\n".join(seen)) < 300_000
    while tail.position[1] < (tmp_path / "attempt-1" / "output.log").stat().st_size:
        tail.forward(1, limit_bytes=1)
    assert "\n".join(seen).split("\n") == lines
