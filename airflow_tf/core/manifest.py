"""Manifests: what was staged, and what was published."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields
from operator import attrgetter
from typing import Any

from airflow_tf.core.identity import digest

FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class StagedFile:
    """One staged file: its source URI, its name below the staged folder, size in bytes, mtime in ms, CRC32C."""

    source: str
    name: str
    size: int
    mtime_ms: int
    crc32c: int


_FILE_FIELDS = tuple(each.name for each in fields(StagedFile))
_file_values = attrgetter(*_FILE_FIELDS)


@dataclass(frozen=True, slots=True)
class Measured:
    """What an input is before it is staged: data files, their bytes, and those of them that the cache has.

    ``idle_bytes`` are cached and in use by no run: staging uses them, and would else be free to remove them.
    """

    files: int
    bytes: int
    cached_bytes: int
    idle_bytes: int


@dataclass(frozen=True, slots=True)
class StagedInput:
    """A staged input: local folder, files and how they came there. Small enough for XCom without ``files``.

    ``boot`` names the boot of the host that staged it: the files are not flushed to disk, so another boot checks them.
    """

    source: str
    folder: str
    files: tuple[StagedFile, ...] = ()
    copied_bytes: int = 0
    cached_bytes: int = 0
    seconds: float = 0.0
    skipped: tuple[str, ...] = ()
    boot: str = ""

    @property
    def total_bytes(self) -> int:
        """Sum of the files' sizes."""
        return sum(file.size for file in self.files)

    @property
    def digest(self) -> str:
        """Twelve hex digits over names, sizes and checksums: what is the same on every host that staged the same."""
        return digest(*((file.name, file.size, file.crc32c) for file in self.files))

    def summary(self) -> dict[str, Any]:
        """Return what goes into XCom: counts, bytes, seconds and paths, never the file list."""
        return {
            "source": self.source,
            "folder": self.folder,
            "files": len(self.files),
            "bytes": self.total_bytes,
            "copied_bytes": self.copied_bytes,
            "cached_bytes": self.cached_bytes,
            "seconds": round(self.seconds, 3),
            "digest": self.digest,
        }

    def lines(self) -> Iterator[str]:
        """Yield the manifest as JSON text, a file a line: there may be a hundred thousand of them."""
        head = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "files"}
        yield json.dumps({"format": FORMAT_VERSION} | head)[:-1] + ', "files": ['
        separator = "\n"
        for file in self.files:
            yield separator + json.dumps(dict(zip(_FILE_FIELDS, _file_values(file), strict=True)))
            separator = ",\n"
        yield "\n]}\n"

    def dumps(self) -> str:
        """Return the manifest as JSON text."""
        return "".join(self.lines())

    @classmethod
    def loads(cls, text: str) -> StagedInput:
        """Read a manifest written by :meth:`dumps`."""
        data = json.loads(text, object_hook=_file_or_same)
        data.pop("format", None)
        data["files"] = tuple(data["files"])
        data["skipped"] = tuple(data["skipped"])
        return cls(**data)


def _file_or_same(data: dict[str, Any]) -> Any:  # noqa: ANN401 -- a file, or the JSON object as it is
    return StagedFile(**data) if "crc32c" in data else data


@dataclass(frozen=True, slots=True)
class PublishManifest:
    """What a published version says of itself: files with sizes and CRC32C, metrics, origin and fence.

    Of two results under one fence, as after an export was corrected, that of the later ``edition`` counts.
    """

    fence: int
    digest: str
    files: dict[str, dict[str, int]]
    metrics: dict[str, Any] = field(default_factory=dict)
    origin: dict[str, Any] = field(default_factory=dict)
    edition: int = 0

    def dumps(self) -> str:
        """Return the manifest as JSON text, keys sorted."""
        return json.dumps({"format": FORMAT_VERSION} | asdict(self), indent=1, sort_keys=True)
