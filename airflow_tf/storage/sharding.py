"""Shares of a staged input, one for each replica: whole files, or ranges of them that end at lines or records.

Every file, line or record is in exactly one share, and the shares are the same on every call. A program needs to know
nothing of it: a share is a folder of files. What is cut is copied, what is not is linked.
"""

from __future__ import annotations

import bisect
import itertools
import json
import mmap
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO

from airflow_tf.core.codecs import HEAD_BYTES, compression_of
from airflow_tf.core.errors import DeclarationError, InputError, StorageNoSpaceError
from airflow_tf.core.manifest import StagedInput
from airflow_tf.core.units import format_bytes
from airflow_tf.storage.cache import NO_SPACE, boot_id, free_bytes, link_or_copy
from airflow_tf.storage.lock import locked
from airflow_tf.storage.records import FRAME_BYTES, data_length, next_record

FILES, LINES, LINES_WITH_HEADER, RECORDS = "files", "lines", "lines_with_header", "records"
WAYS = (FILES, LINES, LINES_WITH_HEADER, RECORDS)
"""How an input may be shared; the last three cut files."""

_PIECE_BYTES = 1 << 20
_UTF16 = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True, slots=True)
class Part:
    """Bytes ``start`` to ``end`` of a staged file of ``size`` bytes, the first ``header`` of which every part repeats.

    ``crc32c`` is that of the whole file: with its size it tells which content this is a part of.
    """

    name: str
    size: int
    crc32c: int
    header: int
    start: int
    end: int

    @property
    def is_whole(self) -> bool:
        """Tell whether nothing is cut off."""
        return (self.start, self.end) == (self.header, self.size)

    @property
    def length(self) -> int:
        """Bytes of the file that holds this part."""
        return self.header + self.end - self.start


def plan_shares(staged: StagedInput, count: int, way: str) -> list[list[Part]]:
    """Return what each of ``count`` replicas gets.

    :raises DeclarationError: if one of them would get nothing, or a file cannot be cut in that way.
    :raises InputError: if a record's framing is damaged.
    """
    if way not in WAYS:
        raise DeclarationError(f"inputs cannot be shared by {way!r}", todo=f"Write one of {', '.join(WAYS)}.")
    if way == FILES:
        return _share_files(staged, count)
    folder = Path(staged.folder)
    whole = [_whole(folder, part, way) for part in _all_files(staged)]
    borders = _record_borders if way == RECORDS else _line_borders
    shares = cut([part for part in whole if part.start < part.end], count, lambda part, at: borders(folder / part, at))
    if not all(shares):
        raise DeclarationError(
            f"{staged.source} cannot be shared among {count} replicas",
            f"replica {shares.index([])} would get nothing: it has too few {_called(way)}, or one is very long",
            "Use fewer replicas, or leave `shard` out so that each replica gets all.",
        )
    return shares


def _called(way: str) -> str:
    return "records" if way == RECORDS else "lines"


def _all_files(staged: StagedInput) -> list[Part]:
    files = sorted(staged.files, key=lambda file: file.name)
    return [Part(file.name, file.size, file.crc32c, 0, 0, file.size) for file in files]


def _share_files(staged: StagedInput, count: int) -> list[list[Part]]:
    """Deal the largest files first, each to the replica that has the fewest bytes."""
    if len(staged.files) < count:
        raise DeclarationError(
            f"{staged.source} cannot be shared among {count} replicas",
            f"it has {len(staged.files)} files, and `shard: files` splits none",
            "Write `shard: lines` (of TFRecord files `shard: records`), use fewer replicas, or leave `shard` out so"
            " that each replica gets all.",
        )
    loads: list[int] = [0] * count
    shares: list[list[Part]] = [[] for _ in range(count)]
    for part in sorted(_all_files(staged), key=lambda part: (-part.size, part.name)):
        chosen = loads.index(min(loads))
        loads[chosen] += max(part.size, 1)  # empty files are dealt in turn as well
        shares[chosen].append(part)
    return shares


def cut(files: Sequence[Part], count: int, borders: Callable[[str, list[int]], list[int]]) -> list[list[Part]]:
    """Cut the files, one after the other, into ``count`` shares of nearly the same number of bytes.

    :param files: whole files that are not empty.
    :param borders: given a name and ascending offsets, returns for each the first from there on at which the file may
        be cut; its end counts as one.
    """
    if not files:
        return [[] for _ in range(count)]
    starts = [0, *itertools.accumulate(part.end - part.start for part in files)]
    wanted: dict[int, list[int]] = defaultdict(list)  # index of a file -> where in it an even cut would be
    for number in range(1, count):
        at = starts[-1] * number // count
        index = bisect.bisect_right(starts, at) - 1
        wanted[index].append(at - starts[index])
    cuts = [(0, 0)]
    for index, offsets in sorted(wanted.items()):
        begin = files[index].start
        found = borders(files[index].name, [begin + offset for offset in offsets])
        cuts += [(index, offset - begin) for offset in found]
    cuts.append((len(files), 0))
    return [_between(files, before, after) for before, after in itertools.pairwise(cuts)]


def _between(files: Sequence[Part], first: tuple[int, int], last: tuple[int, int]) -> list[Part]:
    """Return the parts from one place (index of a file, bytes of it before) to another."""
    parts = []
    for index in range(first[0], min(last[0] + 1, len(files))):
        whole = files[index]
        start = whole.start + (first[1] if index == first[0] else 0)
        end = whole.start + last[1] if index == last[0] else whole.end
        if start < end:
            parts.append(Part(whole.name, whole.size, whole.crc32c, whole.header, start, end))
    return parts


def _whole(folder: Path, part: Part, way: str) -> Part:
    """Return the whole file with its header set apart.

    :raises DeclarationError: if it cannot be cut in that way.
    """
    with (folder / part.name).open("rb") as file:
        head = file.read(max(HEAD_BYTES, FRAME_BYTES))
        if compression := compression_of(head, part.name):
            raise DeclarationError(
                f"{part.name} cannot be split",
                f"it is compressed ({compression})",
                "Write it uncompressed, or share whole files: `shard: files`.",
            )
        if part.size:
            _check_content(part.name, head, way)
        file.seek(0)
        header = _after_line(file) if way == LINES_WITH_HEADER else 0
    return Part(part.name, part.size, part.crc32c, header, header, part.size)


def _check_content(name: str, head: bytes, way: str) -> None:
    length, what = data_length(head), f"{name} cannot be split at {_called(way)}"
    if way == RECORDS and length is None:
        raise DeclarationError(what, "it is no TFRecord file", f"Write `shard: {LINES}` for text.")
    if way != RECORDS and length:
        raise DeclarationError(what, "it is a TFRecord file", f"Write `shard: {RECORDS}`.")
    if way != RECORDS and head.startswith(_UTF16):
        raise DeclarationError(what, "it is UTF-16 text", "Write it as UTF-8.")


def _line_borders(path: Path, offsets: list[int]) -> list[int]:
    """Return where the first line begins from each offset on."""
    found = []
    with path.open("rb") as file:
        for offset in offsets:
            file.seek(max(0, offset - 1))
            if offset:
                _after_line(file)  # the rest of a line, or just the end of the one before
            found.append(file.tell())
    return found


def _after_line(file: IO[bytes]) -> int:
    """Read to the end of the line, in pieces, and return the offset behind it."""
    while (piece := file.readline(_PIECE_BYTES)) and not piece.endswith(b"\n"):
        pass
    return file.tell()


def _record_borders(path: Path, offsets: list[int]) -> list[int]:
    """Return where the first record begins from each offset on; only the way from record to record is sure to hit one.

    :raises InputError: if the framing is damaged before the last of them.
    """
    found, at, number = [], 0, 0
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for offset in offsets:
            while at < offset:
                following = next_record(content, at)
                if following is None or following > len(content):
                    raise InputError(f"{path.name}:{number}:{at}: the record is damaged or cut")
                at, number = following, number + 1
            found.append(at)
    return found


def shard(staged: StagedInput, index: int, count: int, folder: Path, way: str = FILES) -> Path:
    """Fill ``folder`` with the share of replica ``index`` of ``count`` and return it.

    Files keep their names. A folder that holds its share already is left alone: a running replica may be reading it.

    :raises DeclarationError: as :func:`plan_shares` does.
    :raises StorageNoSpaceError: if the disk will not hold the copy of what is cut.
    """
    return fill(staged, plan_shares(staged, count, way)[index], folder)


def fill(staged: StagedInput, share: Sequence[Part], folder: Path) -> Path:
    """Do as :func:`shard` for a share that is planned already: to find the cuts may mean to read all of a file.

    Processes that fill one folder at the same time wait for each other.
    """
    with locked(folder, lambda: None):
        _fill(Path(staged.folder), share, folder)
    return folder


def _fill(staged: Path, share: Sequence[Part], folder: Path) -> None:
    note, described = folder.with_name(f"{folder.name}.json"), _describe(staged, share)
    if _holds(folder, share) and note.exists() and note.read_bytes() == described:
        return
    building = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(mode=0o700, parents=True)
    try:
        for part in share:
            _place(staged / part.name, part, building / part.name)
        note.unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        building.rename(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    draft = note.with_name(f".{note.name}.new")
    draft.write_bytes(described)
    draft.replace(note)


def _describe(staged: Path, share: Sequence[Part]) -> bytes:
    """Return what a share is made of: its parts, the very files that they are links to or copies of, and the boot.

    Nothing is flushed to disk: what another boot of the host has left may be zeros. Its staged files have been verified
    since, or copied anew.
    """
    made_of = [asdict(part) | {"inode": (staged / part.name).stat().st_ino} for part in share]
    return json.dumps({"boot": boot_id(), "parts": made_of}).encode()


def _holds(folder: Path, share: Sequence[Part]) -> bool:
    """Tell whether ``folder`` holds just the files of ``share``, as long as they must be."""
    there = {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    return there == {part.name: part.length for part in share}


def _place(source: Path, part: Part, target: Path) -> None:
    if part.is_whole:
        link_or_copy(source, target)
        return
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with source.open("rb") as original, target.open("wb") as copy:
        try:
            os.posix_fallocate(copy.fileno(), 0, part.length)
            _send(original.fileno(), copy.fileno(), 0, part.header)
            _send(original.fileno(), copy.fileno(), part.start, part.end - part.start)
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
            raise StorageNoSpaceError(
                f"The disk of {target.parent} is too small for a part of {part.name}",
                f"{format_bytes(part.length)} are needed, {format_bytes(free_bytes(target.parent))} are free",
                "Free space, or write the input as more files: whole files are not copied.",
            ) from error
        os.fchmod(copy.fileno(), 0o444)


def _send(source: int, target: int, offset: int, length: int) -> None:
    """Append ``length`` bytes inside the kernel."""
    while length:
        sent = os.sendfile(target, source, offset, length)
        if not sent:
            raise InputError(f"a staged file ends {length} bytes before the end that its manifest names")
        offset, length = offset + sent, length - sent
