"""Which files a source names: a file, a folder with everything below it, or a glob written as in Hadoop.

Matching is done here, over the backends' plain listings, so that it is the same on all of them.
"""

from __future__ import annotations

import fnmatch
import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from airflow_tf.core.errors import DeclarationError, StorageNotFoundError
from airflow_tf.storage.base import FileInfo, FileSystem, Uri, exists

SUCCESS = "_SUCCESS"
"""What a job of Hadoop writes into its output folder when all of it is there."""

_MAGIC = re.compile(r"[*?\[{]")


@dataclass(slots=True)
class Selection:
    """What a source names: data files by their name below its fixed part; names left out: side files, empty files."""

    files: dict[str, FileInfo] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)

    def left_out(self) -> str:
        """Return a line that says what is left out; empty if nothing is."""
        kinds = (("that Hadoop writes beside data", self.skipped), ("that are empty", self.empty))
        found = [f"{len(names)} files {kind}, such as {names[0]}" for kind, names in kinds if names]
        return f"left out: {'; '.join(found)}" if found else ""


def is_side_file(name: str) -> bool:
    """Tell whether Hadoop's own readers would skip a file or folder of this name (``_SUCCESS``, ``.crc``, …)."""
    return name.startswith(("_", ".")) or name.endswith("._COPYING_")


def select(files: FileSystem, uri: Uri, on_entry: Callable[[], None]) -> Selection:
    """List the data files that ``uri`` names, calling ``on_entry`` for each directory entry seen.

    Names are relative to the fixed part: the folder itself, the part of a glob before its first wildcard, or the
    parent of a single file; of several sources, the folder above all of these. Side files of Hadoop and empty files (a
    task without output leaves such a part) are left out, unless a source is that one file.

    :raises StorageNotFoundError: if there is no data file, or none of one of several sources.
    """
    if not uri.others:
        return _select_one(files, uri, on_entry)[1]
    found = [_select_one(files, Uri(uri.scheme, uri.authority, path), on_entry) for path in uri.paths]
    top = posixpath.commonpath([root for root, _ in found])
    whole = Selection()
    for root, part in found:
        below = posixpath.relpath(root, top)

        def named(name: str, below: str = below) -> str:
            return posixpath.normpath(posixpath.join(below, name))

        whole.files |= {named(name): info for name, info in part.files.items()}
        whole.skipped += map(named, part.skipped)
        whole.empty += map(named, part.empty)
    return whole


def _select_one(files: FileSystem, uri: Uri, on_entry: Callable[[], None]) -> tuple[str, Selection]:
    """Return the fixed part, and what is selected below it."""
    selection, root = Selection(), fixed_part(uri.path)
    if _MAGIC.search(uri.path) is None:
        info = files.stat(uri.path)
        if not info.is_dir:
            root, name = posixpath.split(uri.path)
            return root, Selection({name: info})
        _add_tree(files, info, root, selection, on_entry)
    else:
        matches = {m.path: m for pattern in expand_braces(uri.path) for m in _match(files, pattern, on_entry)}
        for path in sorted(matches):
            _add(files, matches[path], root, selection, on_entry)
    if not selection.files:
        raise _nothing(uri, selection)
    return root, selection


def select_finished(files: FileSystem, uri: Uri, on_entry: Callable[[], None]) -> Selection:
    """Select as :func:`select` does, if ``_SUCCESS`` lies beside or above every data file, at most in the fixed part.

    It is looked for before the listing that counts: a job may end between the two.

    :raises StorageNotFoundError: also if it is missing.
    """
    roots = tuple(fixed_part(path) for path in uri.paths)
    finished: set[str] = set()
    while True:
        selection = select(files, uri, on_entry)
        folders = {posixpath.dirname(info.path) for info in selection.files.values()}
        if folders <= finished:
            return selection
        for folder in sorted(folders - finished):
            if not _is_finished(files, folder, roots):
                raise StorageNotFoundError(
                    f"{uri.at(folder)} has no {SUCCESS}",
                    "the job that writes it has not finished, or failed",
                    "Wait for it, for example with a sensor, or leave `require_success` out.",
                )
            on_entry()
        finished |= folders


def _is_finished(files: FileSystem, folder: str, roots: tuple[str, ...]) -> bool:
    while not exists(files, posixpath.join(folder, SUCCESS)):
        if folder in {*roots, "/"} or not folder.startswith(roots):
            return False
        folder = posixpath.dirname(folder)
    return True


def fixed_part(path: str) -> str:
    """Return the folder above the first wildcard of a pattern; a path without one as it is."""
    found = _MAGIC.search(path)
    return path if found is None else posixpath.dirname(path[: found.start()] + "x")


def _nothing(uri: Uri, selection: Selection) -> StorageNotFoundError:
    empty = f"; {len(selection.empty)} are empty, such as {selection.empty[0]}" if selection.empty else ""
    if any(posixpath.basename(name) == SUCCESS for name in selection.skipped):
        why = f"0 data files although {SUCCESS} exists{empty}"
    elif empty:
        why = f"0 data files{empty}"
    elif selection.skipped:
        why = f"0 data files, only side files such as {selection.skipped[0]}"
    else:
        why = "no file matches" if _MAGIC.search(uri.path) else "the folder has no file"
    return StorageNotFoundError(f"{uri} has no data", why, "Check the path and that the job which writes it has run.")


def _add(files: FileSystem, info: FileInfo, root: str, selection: Selection, on_entry: Callable[[], None]) -> None:
    name = posixpath.relpath(info.path, root)
    if any(is_side_file(part) for part in name.split("/")):
        selection.skipped.append(name)
    elif info.is_dir:
        _add_tree(files, info, root, selection, on_entry)
    elif not info.size:
        selection.empty.append(name)
    else:
        selection.files[name] = info


def _add_tree(
    files: FileSystem, folder: FileInfo, root: str, selection: Selection, on_entry: Callable[[], None]
) -> None:
    for info in sorted(_listing(files, folder.path, on_entry), key=lambda entry: entry.path):
        _add(files, info, root, selection, on_entry)


def _listing(files: FileSystem, path: str, on_entry: Callable[[], None]) -> Iterator[FileInfo]:
    for info in files.list(path):
        on_entry()
        yield info


def _match(files: FileSystem, pattern: str, on_entry: Callable[[], None]) -> Iterator[FileInfo]:
    """Yield what one brace-free pattern matches, folder by folder; a missing folder matches nothing."""
    segments = pattern.strip("/").split("/")
    if "**" in segments:
        raise DeclarationError(
            f"{pattern} uses **", "Hadoop's globs have no such wildcard", "Name the folder: all below it is taken."
        )
    found = [FileInfo("/", 0, is_dir=True, mtime_ms=0)]
    for segment in segments:
        found = [info for parent in found for info in _step(files, parent, segment, on_entry)]
    yield from found


def _step(files: FileSystem, parent: FileInfo, segment: str, on_entry: Callable[[], None]) -> Iterator[FileInfo]:
    if not parent.is_dir:
        return
    try:
        if _MAGIC.search(segment) is None:
            yield files.stat(posixpath.join(parent.path, segment))
            return
        pattern = segment.replace("[^", "[!")
        for info in _listing(files, parent.path, on_entry):
            if fnmatch.fnmatchcase(posixpath.basename(info.path), pattern):
                yield info
    except StorageNotFoundError:
        return


def expand_braces(pattern: str) -> list[str]:
    """Return the alternatives of ``{a,b}``, which may be nested and may hold slashes.

    :raises DeclarationError: if a brace is not closed.
    """
    start = pattern.find("{")
    if start < 0:
        return [pattern]
    depth, parts, begin = 0, [], start + 1
    for index in range(start, len(pattern)):
        character = pattern[index]
        depth += {"{": 1, "}": -1}.get(character, 0)
        if (character == "," and depth == 1) or depth == 0:
            parts.append(pattern[begin:index])
            begin = index + 1
        if depth == 0:
            rest = pattern[index + 1 :]
            return [whole for part in parts for whole in expand_braces(pattern[:start] + part + rest)]
    raise DeclarationError(f"{pattern} has a brace that is not closed", todo="Close it, or name the files otherwise.")
