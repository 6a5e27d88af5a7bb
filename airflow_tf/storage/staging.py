"""Staging, as it runs in the mover: list, plan, make room, copy in parallel, link, describe."""

from __future__ import annotations

import posixpath
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from airflow_tf.core.errors import SourceChangedError, StorageError
from airflow_tf.core.identity import digest
from airflow_tf.core.manifest import Measured, StagedFile, StagedInput
from airflow_tf.core.units import format_bytes
from airflow_tf.storage.base import FileInfo, FileSystem, Uri
from airflow_tf.storage.cache import Cache, Entry, boot_id, link_or_copy
from airflow_tf.storage.cache_entries import STAMP_NS, cache_entries
from airflow_tf.storage.crew import Crew
from airflow_tf.storage.download import Download, Source
from airflow_tf.storage.globs import Selection, fixed_part, select, select_finished
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.progress import Patience, Reporter
from airflow_tf.storage.small_files import SMALL_BYTES, Batch, SmallFiles, Wanted, batches

WORKERS = 8
"""Ranges and files in flight at once."""

KEY_LENGTH = 40


def building_path(target: Path) -> Path:
    """Return where a staged folder is built before it takes its name."""
    return target.with_name(f".{target.name}.new")


def manifest_path(target: Path) -> Path:
    """Return where the manifest of a staged folder lies: beside it, so that the folder holds data only."""
    return target.with_name(f"{target.name}.manifest.json")


def already_staged(source: str, target: Path) -> StagedInput | None:
    """Return what the manifest describes, if it is of this source and boot and every file is there, not written to."""
    try:
        staged = StagedInput.loads(manifest_path(target).read_text(encoding="utf-8"))
        if (staged.source, staged.folder, staged.boot) != (source, str(target), boot_id()):
            return None
        whole = all(_is_untouched(target / file.name, file.size) for file in staged.files)
    except FileNotFoundError:
        return None
    return staged if whole else None


def _is_untouched(path: Path, size: int) -> bool:
    found = path.stat()
    return (found.st_size, found.st_mtime_ns) == (size, STAMP_NS)


def cache_key(uri: Uri, options: StorageOptions, info: FileInfo) -> str:
    """Return the name under which the cache keeps a file as it is now."""
    cluster = options.cluster or f"{options.backend}://{uri.authority}"
    # The user is part of the key: what one may read, another must not find in the cache.
    return digest(cluster, options.user, info.path, *info.version, length=KEY_LENGTH)


def measure(
    uri: Uri,
    options: StorageOptions,
    files: FileSystem,
    cache: Path,
    tick: Callable[[], None],
    *,
    require_success: bool = False,
) -> Measured:
    """Count what staging would copy, and what it would find in the cache; nothing is written."""
    found = (select_finished if require_success else select)(files, uri, tick).files.values()
    entries = {entry.key: entry for entry in cache_entries(cache)}
    cached = [entries[key] for info in found if (key := cache_key(uri, options, info)) in entries]
    return Measured(
        files=len(found),
        bytes=sum(info.size for info in found),
        cached_bytes=sum(entry.size for entry in cached),
        idle_bytes=sum(entry.size for entry in cached if not entry.holders),
    )


@dataclass(frozen=True, slots=True)
class Stager:
    """Stages one source into one folder."""

    uri: Uri
    options: StorageOptions
    files: FileSystem
    cache: Cache
    reporter: Reporter
    patience: Patience
    require_success: bool = False

    def run(self, target: Path) -> StagedInput:
        """Copy what is not cached, link all into ``target`` and write the manifest; on failure leave neither."""
        started = time.monotonic()
        choose = select_finished if self.require_success else select
        selection = self.patience(lambda: choose(self.files, self.uri, self.reporter.tick))
        if left_out := selection.left_out():
            self.reporter.note(left_out)
        self._check_names(selection)
        building = building_path(target)
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(mode=0o700, parents=True)
        try:
            staged = self._fill(building, selection)
            selection.files.clear()  # of a hundred thousand files not everything fits into memory at once
            result = self._describe(selection, staged, target, time.monotonic() - started)
            del staged
            found = already_staged(str(self.uri), target)
            if found and found.files == result.files:  # the same again: replicas may be reading from that folder
                return found
            _put_in_place(building, target, result)
        finally:
            shutil.rmtree(building, ignore_errors=True)
        return result

    def _fill(self, building: Path, selection: Selection) -> list[_Staged]:
        """Find out what is missing, make room for it, and place all files."""
        wanted = [Wanted(name, info, self._key(info)) for name, info in selection.files.items()]
        sizes = {file.key: file.info.size for file in wanted}
        self.cache.remove_abandoned(sizes.keys())
        cached = self.cache.find_all(sizes.keys())
        absent = sizes.keys() - cached.keys()
        missing = sum(sizes[key] for key in absent)
        if absent:
            self.cache.make_room(missing - sum(map(self.cache.allocated_bytes, absent)), sizes.keys())
        count, total = len(wanted), sum(file.info.size for file in wanted)
        self.reporter.note(
            f"staging {count} files, {format_bytes(total)}, of which {format_bytes(missing)} are not in the cache"
        )
        self.reporter.expect(count, total)
        return self._copy_all(wanted, cached, building)

    def _check_names(self, selection: Selection) -> None:
        for name in selection.files:
            if name.startswith("/") or ".." in name.split("/"):
                raise StorageError(f"{self.uri} lists {name!r}", "a name must not leave the staged folder")

    def _key(self, info: FileInfo) -> str:
        return cache_key(self.uri, self.options, info)

    def _copy_all(self, wanted: list[Wanted], cached: dict[str, Entry], folder: Path) -> list[_Staged]:
        """Link what is cached, then copy the rest, the largest first: their ranges keep all threads busy to the end."""
        source = Source(self.uri, self.files, self.reporter, self.patience, Crew(WORKERS), boot_id())
        # The folder of a single file need not be ours to list.
        is_tree = len(wanted) > 1 and not self.uri.others and fixed_part(self.uri.path) == self.uri.path
        siblings = Counter(posixpath.dirname(file.info.path) for file in wanted)
        copy_small = SmallFiles(source, self.cache, str(folder), is_tree=is_tree)
        staged: list[_Staged] = []
        large: list[Wanted] = []
        small: list[Wanted] = []
        for file in wanted:
            if linked := self._link(file, cached.get(file.key), folder):
                staged.append(linked)
            else:
                (small if file.info.size <= SMALL_BYTES else large).append(file)
        large.sort(key=lambda file: (-file.info.size, file.name))

        def run_batch(batch: Batch) -> None:
            placed = copy_small(batch)
            for file in batch.files:
                if file.name not in placed:
                    staged.append(self._copy(source, file, folder))
                elif (crc32c := placed[file.name]) is None:
                    self.reporter.note(f"{self.uri.at(file.info.path)} changed while it was read. Copying it again.")
                    staged.append(self._copy_fresh(source, file, folder))
                else:
                    staged.append(self._done(file.name, file.info, crc32c, was_cached=False))

        def tasks() -> Iterator[Callable[[], None]]:
            for file in large:
                yield lambda file=file: staged.append(self._copy(source, file, folder))  # type: ignore[misc]
            for batch in batches(small, 2 * WORKERS, siblings):
                yield lambda batch=batch: run_batch(batch)  # type: ignore[misc]

        source.crew.run(tasks(), self.reporter.cancel)
        return staged

    def _link(self, file: Wanted, entry: Entry | None, folder: Path) -> _Staged | None:
        """Link a cached file; None if it is not cached, or not any more."""
        if entry is None:
            return None
        try:
            link_or_copy(entry.path, f"{folder}/{file.name}")
        except FileNotFoundError:
            return None
        return self._done(file.name, file.info, entry.crc32c, was_cached=True)

    def _copy(self, source: Source, file: Wanted, folder: Path) -> _Staged:
        """Place one file; copied again once if its source changed meanwhile."""
        try:
            return self._place(source, file.name, file.info, folder)
        except SourceChangedError as error:
            self.reporter.note(f"{error} Copying it again.")
            return self._copy_fresh(source, file, folder)

    def _copy_fresh(self, source: Source, file: Wanted, folder: Path) -> _Staged:
        fresh = self.patience(lambda: self.files.stat(file.info.path))
        return self._place(source, file.name, fresh, folder)

    def _place(self, source: Source, name: str, info: FileInfo, folder: Path) -> _Staged:
        entry = self.cache.place(self._key(info), info.size, folder / name, Download(source, info))
        return self._done(name, info, entry.crc32c, was_cached=entry.was_cached)

    def _done(self, name: str, info: FileInfo, crc32c: int, *, was_cached: bool) -> _Staged:
        self.reporter.tick(info.size if was_cached else 0, files=1)
        return _Staged(StagedFile(self.uri.at(info.path), name, info.size, info.mtime_ms, crc32c), was_cached)

    def _describe(self, selection: Selection, staged: list[_Staged], target: Path, seconds: float) -> StagedInput:
        cached = sum(one.file.size for one in staged if one.was_cached)
        total = sum(one.file.size for one in staged)
        return StagedInput(
            source=str(self.uri),
            folder=str(target),
            files=tuple(sorted((one.file for one in staged), key=lambda file: file.name)),
            copied_bytes=total - cached,
            cached_bytes=cached,
            seconds=seconds,
            skipped=tuple(sorted(selection.skipped + selection.empty)),
            boot=boot_id(),
        )


@dataclass(frozen=True, slots=True)
class _Staged:
    file: StagedFile
    was_cached: bool


def _put_in_place(building: Path, target: Path, result: StagedInput) -> None:
    """Replace ``target`` by ``building``, then the manifest: where a manifest is, its folder is whole."""
    manifest = manifest_path(target)
    manifest.unlink(missing_ok=True)
    old = target.with_name(f".{target.name}.old")
    shutil.rmtree(old, ignore_errors=True)
    if target.exists():
        target.rename(old)
    building.rename(target)
    shutil.rmtree(old, ignore_errors=True)
    draft = manifest.with_name(f".{manifest.name}.new")
    with draft.open("w", encoding="utf-8") as file:
        file.writelines(result.lines())
    draft.replace(manifest)
