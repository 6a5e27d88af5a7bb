"""Following the output of a replica by offset: each line once, over attempts, tasks and triggers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from airflow_tf.supervisor.output import describe_hole, hole_end
from airflow_tf.supervisor.results import OUTPUT_FILE

_BLOCK_BYTES = 256 * 1024
_LINES_ONE_BY_ONE = 50

Position = tuple[int, int]
"""Attempt, and bytes of its output that were shown."""


class LogTail:
    """Follow a growing file by offset: each line once, single lines while they are rare, blocks when they flood."""

    def __init__(self, path: Path, emit: Callable[[str], None], offset: int = 0) -> None:
        self._path, self._emit = path, emit
        self._offset = offset
        self._rest = b""

    @property
    def shown_bytes(self) -> int:
        """How much of the file has been emitted."""
        return self._offset - len(self._rest)

    def forward(self, *, final: bool = False, limit_bytes: int | None = None) -> None:
        """Emit all complete lines that were written since the last call; with ``final`` also the last, open one.

        With ``limit_bytes`` it stops after about so much; the next call goes on.
        """
        end = None if limit_bytes is None else self._offset + limit_bytes
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                while (end is None or self._offset < end) and (data := file.read(_BLOCK_BYTES)):
                    if (hole := hole_end(self._path)) > self._offset:
                        self._skip(hole)
                        file.seek(hole)
                        continue
                    self._offset += len(data)
                    *lines, self._rest = (self._rest + data).split(b"\n")
                    self._emit_lines(lines)
                    if len(data) < _BLOCK_BYTES:  # the end: behind a fast writer there would always be a few lines more
                        break
        except (FileNotFoundError, NotADirectoryError):
            return
        if final and self._rest:
            self._emit_lines([self._rest])
            self._rest = b""

    def _skip(self, hole: int) -> None:
        """Go on behind what was rotated away before it was read."""
        if self._rest:
            self._emit_lines([self._rest])
        self._emit(describe_hole(self._path, self._offset, hole))
        self._offset, self._rest = hole, b""

    def _emit_lines(self, lines: list[bytes]) -> None:
        texts = [line.decode(errors="replace").rstrip("\r") for line in lines]
        if len(texts) > _LINES_ONE_BY_ONE:
            texts = ["\n".join(texts)]
        for text in texts:
            self._emit(text)


class OutputTail:
    """Follow the output of one generation's attempts from a position on, in order.

    :param folder: of the replica's generation, with one folder per attempt.
    """

    def __init__(self, folder: Path, emit: Callable[[str], None], position: Position = (0, 0)) -> None:
        self.folder, self._emit = folder, emit
        self._attempt, offset = position
        self._tail = self._open(offset)

    @property
    def position(self) -> Position:
        """Up to where the output was shown."""
        return self._attempt, self._tail.shown_bytes

    @property
    def path(self) -> Path:
        """The file that is followed."""
        return self.folder / f"attempt-{self._attempt}" / OUTPUT_FILE

    def forward(self, attempt: int, *, final: bool = False, limit_bytes: int | None = None) -> None:
        """Emit what is new up to ``attempt``; attempts before it have ended. ``final``: it has ended as well."""
        while self._attempt < attempt:
            self._tail.forward(final=True)
            self._attempt += 1
            self._tail = self._open(0)
        self._tail.forward(final=final, limit_bytes=limit_bytes)

    def _open(self, offset: int) -> LogTail:
        return LogTail(self.path, self._emit, offset)
