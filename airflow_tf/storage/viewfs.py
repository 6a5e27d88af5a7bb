"""``viewfs://``: one tree made of folders of several HDFS clusters, by a mount table of Hadoop properties.

hdfs-native knows it only with a fallback, which few tables have, and shows neither the folders that the table implies
nor what it does not cover; so paths are resolved here, and each cluster is read by its own client.
"""

from __future__ import annotations

import contextlib
import os
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar
from xml.etree import ElementTree as ET

from airflow_tf.core.errors import DeclarationError, StorageError, StorageNotFoundError, StoragePermissionError
from airflow_tf.storage.base import FileInfo, FileSystem, Uri
from airflow_tf.storage.checksum import FileChecksum
from airflow_tf.storage.hdfs import HdfsFileSystem
from airflow_tf.storage.options import StorageOptions

T = TypeVar("T")

_PREFIX = "fs.viewfs.mounttable."
_ROOT_KINDS = ("linkFallback", "linkMergeSlash")
_IGNORED = ("homedir",)
_SITES = ("core-site.xml", "hdfs-site.xml")
_INCLUDE = "{http://www.w3.org/2001/XInclude}include"


def mount_table(authority: str, properties: Mapping[str, str]) -> dict[str, str]:
    """Return the mount points of a table and the URI that each of them links to.

    :param authority: of the URI, which names the table; empty: that of ``fs.defaultFS``, or the table ``default``.
    :raises DeclarationError: if there is no such table, or it has links of a kind that is not known here.
    """
    scheme, _, default = properties.get("fs.defaultFS", "").partition("://")
    name = authority or (default.strip("/") if scheme == "viewfs" else "") or "default"
    table: dict[str, str] = {}
    for key, value in properties.items():
        if not key.startswith(f"{_PREFIX}{name}."):
            continue
        kind, _, path = key.removeprefix(f"{_PREFIX}{name}.").partition(".")
        if kind in _ROOT_KINDS:
            table["/"] = value
        elif kind == "link" and path.startswith("/"):
            table[posixpath.normpath(path)] = value
        elif kind not in _IGNORED:
            raise DeclarationError(
                f"the viewfs mount table {name!r} has {key}", "only link, linkFallback and linkMergeSlash are known"
            )
    if not table:
        raise DeclarationError(
            f"viewfs://{authority}/ has no mount table",
            f"no property {_PREFIX}{name}.link.… is set",
            "Give the properties as the connection's config, or the folder with core-site.xml (HADOOP_CONF_DIR).",
        )
    return table


def read_sites(folder: Path) -> dict[str, str]:
    """Return the properties of Hadoop's configuration folder; what it does not have is left out.

    :raises DeclarationError: if a file is no XML.
    """
    found: dict[str, str] = {}
    for name in _SITES:
        found |= _read_site(folder / name)
    return found


def _read_site(file: Path) -> dict[str, str]:
    try:
        root = ET.fromstring(file.read_bytes())  # noqa: S314 -- the administrator's own file
    except FileNotFoundError:
        return {}
    except (OSError, ET.ParseError) as error:
        raise DeclarationError(f"{file} cannot be read", str(error)) from error
    found: dict[str, str] = {}
    for child in root:
        if child.tag == _INCLUDE:  # mount tables are often files of their own
            found |= _read_site(file.parent / child.get("href", ""))
        elif name := (child.findtext("name") or "").strip():
            found[name] = (child.findtext("value") or "").strip()
    return found


@dataclass(frozen=True, slots=True)
class _Mount:
    """Where a part of the tree is: its path in the view, and client and path of the folder it links to."""

    view: str
    files: FileSystem
    target: str

    def inside(self, path: str) -> str:
        """Return the linked path of one of the view."""
        return posixpath.normpath(posixpath.join(self.target, posixpath.relpath(path, self.view)))

    def shown(self, info: FileInfo) -> FileInfo:
        """Describe a linked file under its path of the view."""
        relative = posixpath.relpath(info.path, self.target)
        return replace(info, path=posixpath.normpath(posixpath.join(self.view, relative)))


class ViewFileSystem:
    """The tree of one mount table. Mount points, and folders above them, can neither be removed nor renamed."""

    def __init__(self, uri: Uri, options: StorageOptions) -> None:
        self._uri = uri
        folder = options.config_dir or os.environ.get("HADOOP_CONF_DIR")
        known = read_sites(Path(folder)) if folder else {}
        clients: dict[str, FileSystem] = {}
        self._mounts: dict[str, _Mount] = {}
        for view, link in mount_table(uri.authority, known | options.config).items():
            target = Uri.parse(link if link.count("/") > 2 else f"{link}/")  # noqa: PLR2004 -- hdfs://host alone
            if target.scheme != "hdfs":
                raise DeclarationError(f"the viewfs mount point {view} links to {link}", "only hdfs:// is known")
            if target.authority not in clients:
                clients[target.authority] = HdfsFileSystem(target, replace(options, url=""))
            self._mounts[view] = _Mount(view, clients[target.authority], target.path)

    def _find(self, path: str) -> _Mount | None:
        while path not in self._mounts:
            if path == "/":
                return None
            path = posixpath.dirname(path)
        return self._mounts[path]

    def _below(self, path: str) -> set[str]:
        """Return the children of ``path`` that the table implies."""
        prefix = path.rstrip("/") + "/"
        return {
            prefix + view.removeprefix(prefix).partition("/")[0]
            for view in self._mounts
            if view.startswith(prefix) and view != path
        }

    def _resolve(self, action: str, path: str) -> _Mount:
        if mount := self._find(path):
            return mount
        raise StorageNotFoundError(
            f"Cannot {action} {self._uri.at(path)}",
            f"it lies under no mount point; there are {', '.join(sorted(self._mounts))}",
            "Correct the path, or add a link to the mount table.",
        )

    def _changeable(self, action: str, path: str) -> _Mount:
        if path in self._mounts or self._below(path):
            raise StoragePermissionError(
                f"Cannot {action} {self._uri.at(path)}", "it is a mount point", "Name a path below it."
            )
        return self._resolve(action, path)

    def stat(self, path: str) -> FileInfo:
        """Describe one path; a folder that only the table implies has no time."""
        implied = FileInfo(path, 0, is_dir=True, mtime_ms=0)
        if path not in self._mounts and self._below(path):
            return implied
        mount = self._resolve("read", path)
        return mount.shown(mount.files.stat(mount.inside(path)))

    def list(self, path: str) -> Iterator[FileInfo]:
        """Yield the children of a directory, mount points included."""
        implied, mount = self._below(path), self._find(path)
        if not implied:
            mount = self._resolve("list", path)
        for child in sorted(implied):
            yield self.stat(child)
        if mount is None:
            return
        with contextlib.suppress(*([StorageNotFoundError] if implied else [])):  # the fallback may lack the folder
            for info in mount.files.list(mount.inside(path)):
                shown = mount.shown(info)
                if shown.path not in implied:
                    yield shown

    def read(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        """Yield ``length`` bytes from ``offset`` on."""
        mount = self._resolve("read", path)
        yield from mount.files.read(mount.inside(path), offset, length)

    def checksum(self, path: str) -> FileChecksum | None:
        """Return what the cluster of the file knows."""
        return self._on(path, "read the checksum of", lambda mount, inside: mount.files.checksum(inside))

    def write(self, path: str, chunks: Iterable[bytes]) -> int:
        """Create or replace a file on the cluster that its folder links to."""
        return self._on(path, "write", lambda mount, inside: mount.files.write(inside, chunks))

    def rename(self, source: str, target: str) -> None:
        """Move a file or directory below one mount point."""
        files, inside, moved = self._pair(source, target)
        files.rename(inside, moved)

    def replace(self, source: str, target: str) -> None:
        """Move a file over another below one mount point."""
        files, inside, moved = self._pair(source, target)
        files.replace(inside, moved)

    def delete(self, path: str) -> None:
        """Delete a file or a directory with all below it, but no mount point."""
        mount = self._changeable("delete", path)
        mount.files.delete(mount.inside(path))

    def make_dirs(self, path: str) -> None:
        """Create a directory and its parents; one that the table implies is there."""
        if not self._below(path):
            self._on(path, "create", lambda mount, inside: mount.files.make_dirs(inside))

    def _on(self, path: str, action: str, call: Callable[[_Mount, str], T]) -> T:
        mount = self._resolve(action, path)
        return call(mount, mount.inside(path))

    def _pair(self, source: str, target: str) -> tuple[FileSystem, str, str]:
        left, right = self._changeable("rename", source), self._changeable("rename", target)
        if left != right:
            raise StorageError(
                f"Cannot rename {self._uri.at(source)} to {self._uri.at(target)}",
                f"{left.view} and {right.view} are different mount points",
                "Name a path below the same mount point.",
            )
        return left.files, left.inside(source), left.inside(target)
