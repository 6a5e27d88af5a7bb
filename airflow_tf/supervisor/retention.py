"""Which run folders are old enough to go, and how one goes: renamed first, so that a crash leaves no half of a run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from airflow_tf.supervisor.protocol import LOCK_NAME

PRUNED_PREFIX = ".pruned-"
_BLOCK_BYTES = 512


@dataclass(frozen=True, slots=True)
class OldFolder:
    """A run folder that nothing has written to for long.

    ``used_at`` is wall time in seconds, ``size_bytes`` what its removal frees: not what the staging cache holds too.
    """

    path: Path
    used_at: float
    size_bytes: int


def old_folders(runs: Path, before: float) -> Iterator[OldFolder]:
    """Yield the run folders below ``runs`` that were last written to before ``before`` (wall time, seconds).

    What an earlier removal has left is always among them.
    """
    if not runs.is_dir():
        return
    for folder in sorted(runs.iterdir()):
        if folder.is_symlink() or not folder.is_dir():
            continue
        used_at = _used_at(folder, before)
        if used_at < before or folder.name.startswith(PRUNED_PREFIX):
            yield OldFolder(folder, used_at, _size_bytes(folder))


def obstacle(folder: Path, live: Collection[Path]) -> str:
    """Return why a run folder must stay now, empty if it may go.

    :param live: run folders of gangs that wait, hold devices or run.
    """
    with contextlib.ExitStack() as stack:
        return _lock(folder, live, stack)


def remove(folder: Path, live: Collection[Path]) -> str:
    """Remove a run folder and all that is in it; return why it must stay, empty if it is gone.

    :param live: as for :func:`obstacle`.
    :raises OSError: if the file system refuses; what is left is removed by the next call.
    """
    if folder.name.startswith(PRUNED_PREFIX):
        _remove_tree(folder)
        return ""
    pruned = folder.with_name(f"{PRUNED_PREFIX}{folder.name}")
    with contextlib.ExitStack() as stack:
        if reason := _lock(folder, live, stack):
            return reason
        _remove_tree(pruned)  # of an earlier removal that did not end
        folder.rename(pruned)
    _remove_tree(pruned)
    return ""


def _lock(folder: Path, live: Collection[Path], stack: contextlib.ExitStack) -> str:
    """Take the locks of all supervisors that could run in a run folder: none is started in it meanwhile."""
    if folder in live:
        return "a run in it waits, holds devices or runs"
    for lock in folder.glob(f"*/{LOCK_NAME}"):
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
        stack.callback(os.close, descriptor)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return "a supervisor runs in it"
    return ""


def _remove_tree(folder: Path) -> None:
    """Remove a tree; one that another process removes at the same time is as good as gone."""
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(folder)


def _used_at(folder: Path, enough: float) -> float:
    """Return when the tree was last written to, as far as needed to know that it was not before ``enough``."""
    newest = folder.lstat().st_mtime
    for entry in _entries(folder):
        if newest >= enough:
            break
        newest = max(newest, entry.st_mtime)
    return newest


def _size_bytes(folder: Path) -> int:
    return sum(entry.st_blocks * _BLOCK_BYTES for entry in _entries(folder))


def _entries(folder: Path) -> Iterator[os.stat_result]:
    """Yield the state of all folders and files below ``folder``, but for files that the staging cache has as well.

    Those are not the run's own: their times tell of the cache's use.
    """
    for parent, folders, files in os.walk(folder):
        for name in (*folders, *files):
            with contextlib.suppress(FileNotFoundError):  # removed meanwhile
                found = os.lstat(os.path.join(parent, name))  # noqa: PTH118 (a walk of many files)
                if name in folders or found.st_nlink == 1:
                    yield found
