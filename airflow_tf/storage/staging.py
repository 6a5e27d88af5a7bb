"""Staging, as it runs in the mover: list, plan, make room, copy in parallel, link, describe."""

from __future__ import annotations

import shutil
import time
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import google_crc32c

from airflow_tf.core.errors import SourceChangedError, StorageError
from airflow_tf.core.identity import digest
from airflow_tf.core.manifest import StagedFile, StagedInput
from airflow_tf.core.units import format_bytes
from airflow_tf.storage.base import FileInfo, FileSystem, Uri
from airflow_tf.storage.cache import Cache, Entry, boot_id
from airflow_tf.storage.globs import Selection, select
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.progress import Patience, Reporter

MOST_WORKERS = 4
KEY_LENGTH = 40


def building_path(target: Path) -> Path:
    """Return where a staged folder is built before it takes its name."""
    return target.with_name(f".{target.name}.new")


def manifest_path(target: Path) -> Path:
    """Return where the manifest of a staged folder lies: beside it, so that the folder holds data only."""
    return target.with_name(f"{target.name}.manifest.json")


def already_staged(source: str, target: Path) -> StagedInput | None:
    """Return what the manifest describes, if it is of this source and boot and every file is there."""
    try:
        staged = StagedInput.loads(manifest_path(target).read_text(encoding="utf-8"))
        if (staged.source, staged.folder, staged.boot) != (source, str(target), boot_id()):
            return None
        whole = all((target / file.name).stat().st_size == file.size for file in staged.files)
    except FileNotFoundError:
        return None
    return staged if whole else None


@dataclass(frozen=True, slots=True)
class Stager:
    """Stages one source into one folder."""

    uri: Uri
    options: StorageOptions
    files: FileSystem
    cache: Cache
    reporter: Reporter
    patience: Patience

    def run(self, target: Path) -> StagedInput:
        """Copy what is not cached, link all into ``target`` and write the manifest; on failure leave neither."""
        started = time.monotonic()
        self.cache.remove_abandoned()
        selection = self.patience(lambda: select(self.files, self.uri, self.reporter.tick))
        self._check_names(selection)
        keys = {self._key(info): info.size for info in selection.files.values()}
        missing = sum(size for key, size in keys.items() if self.cache.find(key) is None)
        self.cache.make_room(missing, set(keys))
        count, total = len(selection.files), sum(info.size for info in selection.files.values())
        self.reporter.note(
            f"staging {count} files, {format_bytes(total)}, of which {format_bytes(missing)} are not in the cache"
        )
        self.reporter.expect(count, total)
        building = building_path(target)
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(mode=0o700, parents=True)
        try:
            staged = self._copy_all(selection, building)
            result = self._describe(selection, staged, target, time.monotonic() - started)
            found = already_staged(str(self.uri), target)
            if found and found.files == result.files:  # the same again: replicas may be reading from that folder
                return found
            _put_in_place(building, target, result)
        finally:
            shutil.rmtree(building, ignore_errors=True)
        return result

    def _check_names(self, selection: Selection) -> None:
        for name in selection.files:
            if name.startswith("/") or ".." in name.split("/"):
                raise StorageError(f"{self.uri} lists {name!r}", "a name must not leave the staged folder")

    def _key(self, info: FileInfo) -> str:
        cluster = self.options.cluster or f"{self.options.backend}://{self.uri.authority}"
        # The user is part of the key: what one may read, another must not find in the cache.
        return digest(cluster, self.options.user, info.path, *info.version, length=KEY_LENGTH)

    def _copy_all(self, selection: Selection, folder: Path) -> dict[str, tuple[FileInfo, Entry]]:
        with ThreadPoolExecutor(MOST_WORKERS, thread_name_prefix="stage") as pool:
            futures: dict[str, Future[tuple[FileInfo, Entry]]] = {
                name: pool.submit(self._copy, info, folder / name) for name, info in selection.files.items()
            }
            done, _ = wait(futures.values(), return_when=FIRST_EXCEPTION)
            if errors := [error for future in done if (error := future.exception())]:
                self.reporter.cancel()
                pool.shutdown(cancel_futures=True)
                raise errors[0]
            return {name: future.result() for name, future in futures.items()}

    def _copy(self, info: FileInfo, target: Path) -> tuple[FileInfo, Entry]:
        """Place one file; copied again once if its source changed meanwhile."""
        try:
            return info, self._place(info, target)
        except SourceChangedError as error:
            self.reporter.note(f"{error} Copying it again.")
            fresh = self.patience(lambda: self.files.stat(info.path))
            return fresh, self._place(fresh, target)

    def _place(self, info: FileInfo, target: Path) -> Entry:
        download = Download(self.uri, self.files, info, self.reporter, self.patience)
        entry = self.cache.place(self._key(info), info.size, target, download)
        self.reporter.tick(info.size if entry.was_cached else 0, files=1)
        return entry

    def _describe(
        self, selection: Selection, staged: dict[str, tuple[FileInfo, Entry]], target: Path, seconds: float
    ) -> StagedInput:
        files = tuple(
            StagedFile(self.uri.at(info.path), name, info.size, info.mtime_ms, entry.crc32c)
            for name, (info, entry) in sorted(staged.items())
        )
        cached = sum(info.size for info, entry in staged.values() if entry.was_cached)
        total = sum(file.size for file in files)
        return StagedInput(
            source=str(self.uri),
            folder=str(target),
            files=files,
            copied_bytes=total - cached,
            cached_bytes=cached,
            seconds=seconds,
            skipped=tuple(sorted(selection.skipped)),
            boot=boot_id(),
        )


class Download:
    """Writes one source file and returns its CRC32C; goes on where it was when a stream breaks."""

    def __init__(self, uri: Uri, files: FileSystem, info: FileInfo, reporter: Reporter, patience: Patience) -> None:
        self._uri, self._files, self._info = uri, files, info
        self._reporter, self._patience = reporter, patience
        self._offset = self._crc32c = 0

    def __call__(self, file: IO[bytes]) -> int:
        """Copy all bytes and compare length, time and id with what was listed.

        :raises SourceChangedError: if they differ.
        """
        self._offset = self._crc32c = 0
        self._patience(lambda: self._stream(file), progress=lambda: self._offset)
        now = self._patience(lambda: self._files.stat(self._info.path))
        if self._offset != self._info.size or now.version != self._info.version:
            raise SourceChangedError(
                f"{self._uri.at(self._info.path)} changed while it was read",
                f"listed with {self._info.size} bytes, {self._offset} were read, now it has {now.size}",
                "Stage it when its writer has finished.",
            )
        return self._crc32c

    def _stream(self, file: IO[bytes]) -> None:
        for chunk in self._files.read(self._info.path, self._offset, self._info.size - self._offset):
            file.write(chunk)
            self._crc32c = google_crc32c.extend(self._crc32c, chunk)
            self._offset += len(chunk)
            self._reporter.tick(len(chunk))


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
    draft.write_text(result.dumps(), encoding="utf-8")
    draft.replace(manifest)
