"""Backend ``hdfs``: the RPC protocol by hdfs-native (Rust; high availability, Kerberos, no JVM).

Its traps, all measured: a client used across a fork hangs; a hung NameNode is never given up, whatever the settings
(therefore the mover has a deadline); a write may hang for ever once a DataNode of it died; a writer that is closed *or
dropped* commits what it has; and a panic of the Rust code is a ``BaseException``.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator
from typing import Any

from airflow_tf.core.errors import (
    AirflowTfError,
    StorageError,
    StorageExistsError,
    StorageNotFoundError,
    StorageUnavailableError,
)
from airflow_tf.storage.base import FileInfo, Uri
from airflow_tf.storage.checksum import FileChecksum
from airflow_tf.storage.failures import check_length, is_unknown_host, java_error, storage_error, unknown_host
from airflow_tf.storage.kerberos import address_of_token, is_kerberos_failure, kerberos_error, properties
from airflow_tf.storage.options import StorageOptions

# By default the client itself retries for 175 s and waits 60 s for a hung DataNode; the mover retries, and says so.
_DEFAULTS = {
    "dfs.client.failover.max.attempts": "3",
    "dfs.client.failover.sleep.base.millis": "100",
    "dfs.client.failover.sleep.max.millis": "500",
    "dfs.client.socket-timeout": "10000",
}
_JAVA = re.compile(r'RPCError\("([\w.$]+)", "(.*)', re.DOTALL)
_UNAVAILABLE_TEXTS = ("DataTransferError", "OperationFailed", "All DataNodes failed", "RPC listener disconnected")
_LONGEST_REASON = 300
_PACKET_BYTES = 64 << 10
_HINTS = {
    "RPC listener disconnected": "a cluster with Kerberos does so to a client without hadoop.security.authentication",
    "complete file in time": "a cluster with Kerberos does so to a client without dfs.data.transfer.protection",
}


class HdfsFileSystem:
    """One HDFS cluster, by its RPC protocol."""

    def __init__(self, uri: Uri, options: StorageOptions) -> None:
        try:
            import hdfs_native  # an optional package, loaded in the mover only
        except ImportError as error:
            raise AirflowTfError(
                f"{uri} cannot be reached", "hdfs-native is not installed", "Install airflow-tf[hdfs]."
            ) from error
        self._uri, self._options = uri, options
        self._written_with: Any = hdfs_native.WriteOptions(
            block_size=options.block_bytes, replication=options.replication, overwrite=True, create_parent=False
        )
        url = options.url or (f"{uri.scheme}://{uri.authority}" if uri.authority else None)
        # A name without a port may stand for several NameNodes, of which one that is unknown does no harm.
        self._only_host = (url or "").partition("://")[2].rpartition(":")[0]
        with self._translated("reach", "/"):
            self._client: Any = hdfs_native.Client(
                address_of_token(url, options) if url else None,
                _DEFAULTS | properties(options) | options.config,
                options.config_dir,
                kerberos_principal=options.kerberos_principal,
                kerberos_keytab=options.kerberos_keytab,
                kerberos_cache=options.kerberos_cache if options.kerberos_principal else None,
            )

    @contextlib.contextmanager
    def _translated(self, action: str, path: str) -> Iterator[None]:
        try:
            yield
        except (AirflowTfError, KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # a panic of the client is no Exception
            where = self._uri.at(path)
            if self._only_host and is_unknown_host(str(error)):
                raise unknown_host(self._only_host, action, where) from error
            if is_kerberos_failure(str(error)):
                raise kerberos_error(str(error), self._options, action, where) from error
            raise _translate(error, action, where) from error

    def stat(self, path: str) -> FileInfo:
        """Describe one path."""
        with self._translated("read", path):
            return _info(path, self._client.get_file_info(path))

    def list(self, path: str) -> Iterator[FileInfo]:
        """Yield the children of a directory."""
        with self._translated("list", path):
            for status in self._client.list_status(path, False):
                if status.path == path and not status.isdir:
                    raise storage_error(StorageError, "list", self._uri.at(path), "it is a file")
                yield _info(status.path, status)

    def read(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        """Yield ``length`` bytes from ``offset`` on, by the client's own stream (fails over inside a block)."""
        with self._translated("read", path):
            reader = self._client.read(path)
            length = min(length, len(reader) - offset)  # a range past the end makes the client panic
            if length > _PACKET_BYTES:
                yield from reader.read_range_stream(offset, length)
            elif length > 0:
                yield reader.read_range(offset, length)  # at once: a stream of one piece costs twice as much

    def checksum(self, path: str) -> FileChecksum | None:
        """Return None: the client compares the checksums of all blocks while it reads."""
        del path
        return None

    def write(self, path: str, chunks: Iterable[bytes]) -> int:
        """Create or replace a file, and check the length that the NameNode has recorded."""
        length = 0
        try:
            with self._translated("write", path):
                writer = self._client.create(path, self._written_with)
                try:
                    for chunk in chunks:
                        writer.write(chunk)
                        length += len(chunk)
                except BaseException:
                    del writer  # dropping commits: the file is deleted below
                    raise
                writer.close()
            check_length(length, self.stat(path).size, self._uri.at(path))
        except BaseException:
            with contextlib.suppress(StorageError):  # the first error is the one to tell
                self.delete(path)
            raise
        return length

    def rename(self, source: str, target: str) -> None:
        """Move a file or directory without replacing."""
        with self._translated(f"rename {source} to", target):
            self._client.rename(source, target, False)

    def replace(self, source: str, target: str) -> None:
        """Move a file over another."""
        with self._translated(f"rename {source} to", target):
            self._client.rename(source, target, True)

    def delete(self, path: str) -> None:
        """Delete a file or a directory with all below it."""
        with self._translated("delete", path):
            self._client.delete(path, True)

    def make_dirs(self, path: str) -> None:
        """Create a directory and its parents."""
        with self._translated("create", path):
            self._client.mkdirs(path, 0o755, True)


def _info(path: str, status: Any) -> FileInfo:  # noqa: ANN401 -- hdfs_native.FileStatus, which must not be imported here
    size = 0 if status.isdir else status.length
    return FileInfo(path=path, size=size, is_dir=status.isdir, mtime_ms=status.modification_time)


def _translate(error: BaseException, action: str, uri: str) -> StorageError:
    text = str(error)
    if isinstance(error, FileNotFoundError):
        return storage_error(StorageNotFoundError, action, uri, "it does not exist")
    if isinstance(error, FileExistsError):
        return storage_error(StorageExistsError, action, uri, "it exists")
    if match := _JAVA.search(text):
        return java_error(match.group(1), match.group(2).split("\\n")[0].rstrip('")'), action, uri)
    if "No NameNode hosts found" in text:
        todo = "Add the port to the host, or give the folder with hdfs-site.xml (HADOOP_CONF_DIR, or the connection's)."
        return StorageError(f"Cannot {action} {uri}", "no NameNode is configured under this name", todo)
    reason = (text[:_LONGEST_REASON] or type(error).__name__) + next(
        (f" ({hint})" for known, hint in _HINTS.items() if known in text), ""
    )
    if isinstance(error, OSError) or any(known in text for known in _UNAVAILABLE_TEXTS):
        return storage_error(StorageUnavailableError, action, uri, reason)
    return storage_error(StorageError, action, uri, f"{type(error).__name__}: {reason}")
