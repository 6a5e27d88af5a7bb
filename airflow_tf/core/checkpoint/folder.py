"""The checkpoints of one local folder: which there are, and how some are removed without a crash leaving half of one.

Removal has two phases. First the index is renamed to ``.pruned-<name>.index``: the checkpoint is gone for every
reader. Then the data goes, and that mark last; whatever a crash leaves, the next removal finds by the mark.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from airflow_tf.core.checkpoint.bundle import BundleReader
from airflow_tf.core.checkpoint.completeness import STATE_FILE, named_by_state, prefix_step
from airflow_tf.core.durable import sync_folder
from airflow_tf.core.errors import CheckpointError
from airflow_tf.core.retention import Keep, Kept, to_keep

_MARK = ".pruned-"
_UNFINISHED = "unfinished"


@dataclass(frozen=True, slots=True)
class Found:
    """One checkpoint of a folder. ``problem`` says what is wrong with it, as far as its index and sizes tell."""

    prefix: str
    step: int | None
    tensors: int
    size_bytes: int
    seconds: float
    problem: str = ""

    @property
    def name(self) -> str:
        """The last part of the prefix."""
        return Path(self.prefix).name


@dataclass(frozen=True, slots=True)
class Removal:
    """What becomes of one checkpoint: ``kept`` says why it stays, empty if it goes."""

    found: Found
    kept: str


def checkpoints(folder: Path) -> list[Found]:
    """Return the checkpoints of ``folder``, oldest first, saves that never finished (data, no index) among them.

    One that is removed meanwhile, by the program or by :func:`remove`, is left out.

    :raises CheckpointError: if the folder cannot be read.
    """
    try:
        names = sorted(path.name for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    except OSError as error:
        why = error.strerror or str(error)
        raise CheckpointError(f"folder {folder} cannot be read", why, "Check its path and permissions.") from error
    whole = {name.removesuffix(".index") for name in names if name.endswith(".index")}
    data = {name.rpartition(".data-")[0] for name in names if ".data-" in name}
    found = [each for name in sorted(whole | data) if (each := _look(folder, name)) is not None]
    return sorted(found, key=lambda each: (each.step if each.step is not None else -1, each.seconds, each.name))


def _look(folder: Path, name: str) -> Found | None:
    """Return what is known of a checkpoint, None if it is being removed."""
    prefix = str(folder / name)
    try:
        files = _files(folder, name)
        stats = [path.stat() for path in files]
    except FileNotFoundError:
        return None
    if not stats:
        return None
    size, seconds = sum(stat.st_size for stat in stats), max(stat.st_mtime for stat in stats)
    problem, tensors = "", 0
    if folder / f"{name}.index" not in files:
        problem = _UNFINISHED
    else:
        try:
            with BundleReader(prefix) as reader:
                tensors = len(reader.entries)
        except CheckpointError as error:
            problem = error.why or error.what
    return Found(prefix, prefix_step(prefix), tensors, size, seconds, problem)


def _files(folder: Path, name: str) -> list[Path]:
    return [path for path in folder.iterdir() if path.name.startswith((f"{name}.data-", f"{name}.index"))]


def plan_removal(
    folder: Path, rules: Keep, protected: Mapping[str, str], now_seconds: Callable[[], float] = time.time
) -> list[Removal]:
    """Return what :func:`remove` would do to each checkpoint of a folder.

    The one that TensorFlow's state file names, the newest whole one and what is being read stay whatever the rules
    say. Damaged and unfinished ones count for no rule: they go once they are not young; a save may be under way.
    """
    now = now_seconds()
    found = checkpoints(folder)
    stays = dict(protected)
    named = named_by_state(folder)
    if isinstance(named, str):
        stays.setdefault(Path(named).name, f"named by the file {STATE_FILE!r}")
    whole = [each for each in found if not each.problem]
    reasons = to_keep([Kept(each.name, now - each.seconds) for each in whole], rules, stays)
    newest = max((each.seconds for each in whole), default=now)
    for each in found:
        if each.problem:  # older than a whole one: nothing can be writing it any more
            reasons[each.name] = stays.get(each.name) or ("" if each.seconds < newest else "perhaps being written")
    return [Removal(each, reasons[each.name] or _in_use(each)) for each in found]


def remove(folder: Path, removals: list[Removal]) -> None:
    """Remove the checkpoints that are not kept, and what earlier removals have left.

    :raises OSError: if the file system refuses; the next call goes on.
    """
    for removal in removals:
        if not removal.kept:
            index = folder / f"{removal.found.name}.index"
            mark = folder / f"{_MARK}{index.name}"
            if index.exists():
                index.rename(mark)
            else:
                mark.touch()
    sync_folder(folder)
    for mark in sorted(folder.glob(f"{_MARK}*.index")):
        name = mark.name.removeprefix(_MARK).removesuffix(".index")
        if not (folder / f"{name}.index").exists():  # else it was written anew
            for path in _files(folder, name):
                path.unlink(missing_ok=True)
            (folder / f"{name}.meta").unlink(missing_ok=True)
        mark.unlink(missing_ok=True)


def _in_use(found: Found) -> str:
    """Tell whether a reader of ours has the index locked."""
    try:
        descriptor = os.open(f"{found.prefix}.index", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return ""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return "being read"
    finally:
        os.close(descriptor)
    return ""
