"""The code of a run as it was when the run began: a folder or a zip file, copied by content into the run's own folder.

What changes at the source while the run goes on changes nothing in it, on this host. What git ignores is left out.

The files of a copy are not synced one by one. Its note is, and says in which boot of the host the copy was made or last
looked through: in another boot, as after a power cut, it is looked through before it is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
import uuid
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import IO

from pathspec import GitIgnoreSpec

from airflow_tf.core.durable import sync_folder
from airflow_tf.core.errors import DeclarationError
from airflow_tf.core.identity import digest
from airflow_tf.storage.cache import boot_id
from airflow_tf.storage.lock import locked

MAX_BYTES = 256 * 2**20
MAX_FILES = 10_000
_CHUNK_BYTES = 2**20
_NEVER = frozenset({".git", "__pycache__"})
_REMEDY = "Put programs only into it, and data under 'inputs'; or let .gitignore name what does not belong to it."


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Code in the folder of a run.

    :param folder: where it lies; read it, but do not write into it.
    :param digest: SHA-256 over names, executable bits and contents: the version of the code.
    """

    source: str
    folder: str
    digest: str
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class _Note:
    """What is remembered of a copy: ``entries`` are what its digest is made of."""

    snapshot: Snapshot
    entries: list[str]
    boot: str


def snapshot(source: Path, home: Path) -> Snapshot:
    """Copy ``source``, a folder or a zip file, below ``home``, unless this run has done so before; return the copy.

    A copy that a power cut has damaged is made again, if the source is still what was copied.

    :raises DeclarationError: if there is no such source, it is too large, or holds what leads out of it; if the copy is
        damaged, and the source has changed.
    """
    path = _note_path(source, home)
    with locked(home / "code", on_wait=lambda: None):
        note, boot = _read_note(path), boot_id()
        if note is not None and note.boot == boot and Path(note.snapshot.folder).is_dir():
            return note.snapshot
        if note is None or not _is_whole(Path(note.snapshot.folder), note.entries):
            made, entries = _make(source, home, note)
        else:
            made, entries = note.snapshot, note.entries
        _write_note(path, _Note(made, entries, boot))
    return made


def known_snapshot(source: Path, home: Path) -> Snapshot | None:
    """Return the copy that this run has of ``source`` on this host, if it has one."""
    note = _read_note(_note_path(source, home))
    return note.snapshot if note is not None and Path(note.snapshot.folder).is_dir() else None


def _note_path(source: Path, home: Path) -> Path:
    return home / f"{digest(source)}.json"


def _read_note(path: Path) -> _Note | None:
    """Return a note, None where there is none, or none that can be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return _Note(Snapshot(**found["snapshot"]), list(found["entries"]), str(found["boot"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _write_note(path: Path, note: _Note) -> None:
    written = path.with_suffix(".new")
    with written.open("w", encoding="utf-8") as file:
        json.dump(asdict(note), file)
        file.flush()
        os.fsync(file.fileno())
    written.replace(path)
    sync_folder(path.parent)


def _make(source: Path, home: Path, note: _Note | None) -> tuple[Snapshot, list[str]]:
    """Copy what was copied before, or what nobody has used yet, into its place."""
    building, aside = (home / f".{uuid.uuid4().hex}" for _ in range(2))
    building.mkdir(mode=0o700)
    try:
        made, entries = _copy(source, building, home)
        folder, path = Path(made.folder), _note_path(source, home)
        is_same = made.digest == note.snapshot.digest if note else folder.exists() or not path.exists()
        if not is_same:
            raise DeclarationError(
                f"the copy of code {source} that this run began with is damaged",
                f"as after a power cut, and the source is not what {path} was written for any more",
                "Put the code back as it was, or begin a new run.",
            )
        if not _is_whole(folder, entries):
            if folder.exists():
                folder.rename(aside)
            building.rename(folder)
    finally:
        for each in (building, aside):
            shutil.rmtree(each, ignore_errors=True)
    return made, entries


def _is_whole(folder: Path, entries: list[str]) -> bool:
    """Tell whether all that was copied is there; what programs have added, like caches of bytecode, does not count."""
    try:
        return all(_entry(folder, entry.partition("\0")[0]) == entry for entry in entries)
    except OSError:
        return False


def _entry(folder: Path, name: str) -> str:
    path = folder / name
    with path.open("rb") as file:
        content = hashlib.file_digest(file, "sha256").hexdigest()
        return f"{name}\0{bool(os.fstat(file.fileno()).st_mode & stat.S_IXUSR):d}\0{content}"


def _copy(source: Path, target: Path, home: Path) -> tuple[Snapshot, list[str]]:
    if source.is_dir():
        copier = _Copier(source, target)
        for path in _kept(source):
            with path.open("rb") as stream:
                copier.add(path.relative_to(source).as_posix(), stream, is_executable=os.access(path, os.X_OK))
    elif source.is_file():
        copier = _Copier(source, target)
        _unpack(source, copier)
    else:
        raise DeclarationError(f"there is no code {source}", todo="Give a folder or a zip file.")
    if not copier.entries:
        raise DeclarationError(f"code {source} has no file", todo="Give a folder or a zip file with programs.")
    total = hashlib.sha256("\n".join(sorted(copier.entries)).encode()).hexdigest()
    made = Snapshot(str(source), str(home / total[:16]), total, len(copier.entries), copier.bytes)
    return made, copier.entries


class _Copier:
    """Writes files below a folder, within limits, and gathers what the digest is made of."""

    def __init__(self, source: Path, target: Path) -> None:
        self.entries: list[str] = []
        self.bytes = 0
        self._source, self._target = source, target

    def add(self, name: str, stream: IO[bytes], *, is_executable: bool) -> None:
        """Copy one file; what it says of its own size is not believed."""
        path = self._target / name
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        content = hashlib.sha256()
        with path.open("xb") as file:
            while chunk := stream.read(_CHUNK_BYTES):
                self.bytes += len(chunk)
                if self.bytes > MAX_BYTES:
                    raise DeclarationError(f"code {self._source} is larger than {MAX_BYTES >> 20} MiB", todo=_REMEDY)
                content.update(chunk)
                file.write(chunk)
        path.chmod(0o500 if is_executable else 0o400)
        self.entries.append(f"{name}\0{is_executable:d}\0{content.hexdigest()}")
        if len(self.entries) > MAX_FILES:
            raise DeclarationError(f"code {self._source} has more than {MAX_FILES} files", todo=_REMEDY)


def _unpack(source: Path, copier: _Copier) -> None:
    try:
        with zipfile.ZipFile(source) as archive:
            names: set[str] = set()
            for info in archive.infolist():
                if info.is_dir():
                    continue
                _check_entry(source, info, names)
                with archive.open(info) as stream:
                    copier.add(info.filename, stream, is_executable=bool(info.external_attr >> 16 & stat.S_IXUSR))
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, EOFError, RuntimeError, OSError) as error:
        raise DeclarationError(f"code {source} cannot be unpacked", str(error), "Make the zip file anew.") from error


def _check_entry(source: Path, info: zipfile.ZipInfo, names: set[str]) -> None:
    """Refuse what would be written elsewhere, or would not be a plain file."""
    path, mode = PurePosixPath(info.filename), info.external_attr >> 16
    leads_out = path.is_absolute() or ".." in path.parts or "\\" in info.filename or ":" in info.filename
    if leads_out or "\0" in info.orig_filename:
        raise DeclarationError(f"code {source} has a file {info.filename!r} that leads out of it", todo="Remove it.")
    if stat.S_IFMT(mode) not in {0, stat.S_IFREG}:
        raise DeclarationError(f"{info.filename!r} in code {source} is not a plain file", todo="Remove it.")
    if info.filename in names:
        raise DeclarationError(f"code {source} has two files {info.filename!r}", todo="Remove one.")
    names.add(info.filename)


def _kept(root: Path) -> Iterator[Path]:
    """Yield the files that belong to the code, in the order of their names."""
    top = next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), root)
    above = [folder for folder in reversed(root.parents) if folder.is_relative_to(top)]
    rules = [(top, _spec(top / ".git" / "info" / "exclude"))]
    rules += [(folder, _spec(folder / ".gitignore")) for folder in above]
    yield from _walk(root, root, rules)


def _walk(root: Path, folder: Path, rules: list[tuple[Path, GitIgnoreSpec | None]]) -> Iterator[Path]:
    rules = [*rules, (folder, _spec(folder / ".gitignore"))]
    for path in sorted(folder.iterdir()):
        is_folder = path.is_dir() and not path.is_symlink()
        if path.name in _NEVER or _is_ignored(path, rules, is_folder=is_folder):
            continue
        if is_folder:
            yield from _walk(root, path, rules)
        elif path.is_file() and path.resolve().is_relative_to(root.resolve()):
            yield path
        else:
            what = f"{path} is a link that leads to a folder or out of the code, or is no plain file"
            raise DeclarationError(what, todo="Remove it, or let .gitignore name it.")


def _spec(file: Path) -> GitIgnoreSpec | None:
    if not file.is_file():
        return None
    return GitIgnoreSpec.from_lines(file.read_text(encoding="utf-8", errors="replace").splitlines())


def _is_ignored(path: Path, rules: list[tuple[Path, GitIgnoreSpec | None]], *, is_folder: bool) -> bool:
    """Decide as git does: the last rule that says something counts, that of the innermost file."""
    ignored = False
    for folder, spec in rules:
        if spec is not None:
            found = spec.check_file(path.relative_to(folder).as_posix() + "/" * is_folder).include
            ignored = ignored if found is None else found
    return ignored
