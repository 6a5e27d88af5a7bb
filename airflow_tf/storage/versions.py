"""The published versions below one base: which there are, which is the newest, and which may go.

The file ``_latest`` names the newest. It is replaced by one rename, and whoever publishes writes what the listing
shows and looks again, so that of two publishers at once none leaves the older name behind.

Removal has two phases: a version that no rule keeps is marked, and removed by a later call when readers have had
``grace_seconds`` to end. A reader that asks for the newest never gets a marked one.
"""

from __future__ import annotations

import contextlib
import json
import posixpath
import re
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from airflow_tf.core.errors import DeclarationError, StorageError, StorageNotFoundError
from airflow_tf.core.retention import Keep, Kept, to_keep
from airflow_tf.storage.ahead import is_unfinished
from airflow_tf.storage.base import FileInfo, FileSystem, Uri, exists, read_all
from airflow_tf.storage.carrying import RUNS
from airflow_tf.storage.progress import Patience

LATEST = "_latest"
MANIFEST = "manifest.json"
SUCCESS = "_SUCCESS"
MARK = "_to_be_removed"
GRACE_SECONDS = 3600.0
COPIES_SECONDS = 7 * 86400.0
"""What was copied or sent for a run that has not published goes when nothing came for so long."""
_VERSION = re.compile(r"^v=\d{8}T\d{6}Z-[0-9a-f]+$")
_REMOVING = ".airflow_tf-pruned-"
_POINTING = ".airflow_tf-latest-"
_MOST_LOOKS = 20


@dataclass(frozen=True, slots=True)
class Version:
    """One whole version; ``marked_at`` and ``published_at`` are wall times in seconds by the file system's clock."""

    name: str
    published_at: float
    metrics: dict[str, Any] = field(default_factory=dict)
    marked_at: float | None = None
    step: int | None = None


@dataclass(frozen=True, slots=True)
class Versions:
    """The versions below ``uri``, maybe thousands: ``tick`` is called for each one that is looked at or changed."""

    uri: Uri
    files: FileSystem
    patience: Patience
    tick: Callable[[], None] = lambda: None
    wall_seconds: Callable[[], float] = time.time

    def all(self) -> list[Version]:
        """Return the whole versions, oldest first; a base that is not there has none."""
        found = [self._look(name) for name in _names(self._children(self.uri.path))]
        return [version for version in found if version is not None]

    def latest(self) -> str | None:
        """Return the URI of the newest version that is not to be removed, None where there is none."""
        name = self.patience(lambda: self._newest(self._children(self.uri.path)))
        return None if name is None else self.uri.at(self._path(name))

    def point(self) -> None:
        """Let ``_latest`` name the newest version, and remove what killed publishers left of a pointer.

        :raises StorageError: if it cannot be written.
        """
        there: list[FileInfo] = []
        for _ in range(_MOST_LOOKS):
            there = self.patience(lambda: self._children(self.uri.path))
            name = self.patience(partial(self._newest, there))
            if name is None or self.patience(self.pointer) == name:
                break
            self.patience(partial(self._write_pointer, name))
        for info in there:
            if posixpath.basename(info.path).startswith(_POINTING):
                self.patience(partial(self.files.delete, info.path))

    def pointer(self) -> str | None:
        """Return what ``_latest`` names."""
        try:
            return read_all(self.files, self._path(LATEST)).decode("utf-8", "replace").strip()
        except StorageNotFoundError:
            return None

    def rows(self) -> list[dict[str, Any]]:
        """Return what people want to know of each version, oldest first.

        ``state`` is ``latest`` for the one that ``_latest`` names, ``to be removed`` for marked ones.
        """
        pointer, found = self.patience(self.pointer), self.patience(self.all)
        return [
            {
                "version": each.name,
                "step": each.step,
                "published": each.published_at,
                "metrics": {name: value for name, value in each.metrics.items() if _number(value) is not None},
                "state": "latest" if each.name == pointer else "" if each.marked_at is None else "to be removed",
            }
            for each in found
        ]

    def prune(
        self, rules: Keep, metric: str | None, grace_seconds: float = GRACE_SECONDS, *, dry_run: bool = False
    ) -> list[dict[str, Any]]:
        """Mark what no rule keeps, remove what was marked ``grace_seconds`` ago; return a row for each version.

        The newest and the one that ``_latest`` names always stay. A dry run changes nothing.

        :raises DeclarationError: if no version has the metric by which the best are kept: all others would go.
        """
        now, versions = self.wall_seconds(), self.patience(self.all)
        if rules.best and versions:
            _require_metric(versions, metric or "")
        if not dry_run:
            self.patience(lambda: self._finish(now))
            self.patience(lambda: self._remove_copies(now))
        kept = [Kept(each.name, now - each.published_at, _number(each.metrics.get(metric or ""))) for each in versions]
        pointer = self.patience(self.pointer)
        reasons = to_keep(kept, rules, {pointer: "published as the newest"} if pointer else {})
        rows = []
        for version in versions:
            result = _fate(version, reasons[version.name], now, grace_seconds)
            if not dry_run:
                self._carry_out(version, result)
            rows.append({"version": version.name, "result": result, "reason": reasons[version.name]})
        return rows

    def _newest(self, there: Sequence[FileInfo]) -> str | None:
        """Look from the newest name backwards: mostly one look, however many versions there are."""
        looks = (self._look(name) for name in reversed(_names(there)))
        return next((found.name for found in looks if found and found.marked_at is None), None)

    def _carry_out(self, version: Version, result: str) -> None:
        self.tick()
        mark = posixpath.join(self._path(version.name), MARK)
        if result == "kept" and version.marked_at is not None:  # a rule keeps it now
            self.patience(lambda: self.files.delete(mark))
        elif result == "marked" and version.marked_at is None:
            self.patience(lambda: self.files.write(mark, [b""]))
        elif result == "removed":
            self.patience(lambda: self._remove(version.name))

    def _remove(self, name: str) -> None:
        """Rename, then delete: a killed deletion leaves no half of a version under its name."""
        hidden = self._path(f"{_REMOVING}{name}-{uuid.uuid4().hex[:12]}")
        with contextlib.suppress(StorageNotFoundError):  # the answer to an earlier try was lost
            self.files.rename(self._path(name), hidden)
        self.files.delete(hidden)

    def _finish(self, now: float) -> None:
        with contextlib.suppress(StorageNotFoundError):
            for info in list(self.files.list(self.uri.path)):
                name, is_old = posixpath.basename(info.path), now - info.mtime_ms / 1000 > COPIES_SECONDS
                if name.startswith(_REMOVING) or (is_old and is_unfinished(name)):
                    self.files.delete(info.path)
                    self.tick()

    def _remove_copies(self, now: float) -> None:
        """Remove what was copied while runs trained that have not published: nothing of it has changed for long."""
        root = self._path(RUNS)
        for run in self._children(root):
            seen = [run, *(each for task in self._children(run.path) for each in self._below(task, 3))]
            if now - max(info.mtime_ms for info in seen) / 1000 > COPIES_SECONDS:
                self.files.delete(run.path)

    def _below(self, folder: FileInfo, levels: int) -> list[FileInfo]:
        deeper = self._children(folder.path) if levels else []
        return [folder, *(each for child in deeper for each in self._below(child, levels - 1))]

    def _children(self, path: str) -> list[FileInfo]:
        self.tick()
        try:
            return list(self.files.list(path))
        except StorageNotFoundError:
            return []

    def _look(self, name: str) -> Version | None:
        self.tick()
        path = self._path(name)
        try:
            manifest = json.loads(read_all(self.files, posixpath.join(path, MANIFEST)))
            published = self.files.stat(posixpath.join(path, SUCCESS)).mtime_ms / 1000
            metrics, step = manifest.get("metrics"), (manifest.get("origin") or {}).get("step")
        except (StorageNotFoundError, ValueError, AttributeError):
            return None  # being published, or not ours
        mark = posixpath.join(path, MARK)
        marked = self.files.stat(mark).mtime_ms / 1000 if exists(self.files, mark) else None
        known = metrics if isinstance(metrics, dict) else {}
        return Version(name, published, known, marked, step if isinstance(step, int) else None)

    def _write_pointer(self, name: str) -> None:
        temporary = self._path(f"{_POINTING}{uuid.uuid4().hex[:12]}")
        try:
            with contextlib.suppress(StorageNotFoundError):  # another publisher took it for a killed one's: look again
                self.files.write(temporary, [name.encode()])
                self.files.replace(temporary, self._path(LATEST))
        finally:
            with contextlib.suppress(StorageError):  # it was renamed
                self.files.delete(temporary)

    def _path(self, name: str) -> str:
        return posixpath.join(self.uri.path, name)


def _names(there: Sequence[FileInfo]) -> list[str]:
    """Return the names of what may be versions, oldest first."""
    names = [posixpath.basename(info.path) for info in there if info.is_dir]
    return sorted(name for name in names if _VERSION.match(name))


def _require_metric(versions: Sequence[Version], metric: str) -> None:
    if any(_number(version.metrics.get(metric)) is not None for version in versions):
        return
    known = sorted({name for each in versions for name, value in each.metrics.items() if _number(value) is not None})
    todo = f"Known are: {', '.join(known)}." if known else "Publish with an evaluation, or keep by another rule."
    raise DeclarationError(f"no version has the metric {metric!r} by which the best are kept", todo=todo)


def _fate(version: Version, reason: str, now: float, grace_seconds: float) -> str:
    """Return ``kept``, ``marked`` or ``removed``."""
    if reason:
        return "kept"
    if version.marked_at is None or now - version.marked_at < grace_seconds:
        return "marked"
    return "removed"


def _number(value: Any) -> float | None:  # noqa: ANN401 (whatever the manifest says)
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
