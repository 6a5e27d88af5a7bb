"""Backend ``webhdfs``: HDFS over HTTP by HdfsCLI, the client of Airflow's own HDFS provider."""

from __future__ import annotations

import contextlib
import posixpath
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any
from urllib.parse import urlsplit

import requests
import urllib3

from airflow_tf.core.errors import (
    AirflowTfError,
    StorageError,
    StoragePermissionError,
    StorageUnavailableError,
)
from airflow_tf.storage.base import CHUNK_BYTES, FileInfo, Uri
from airflow_tf.storage.checksum import FileChecksum
from airflow_tf.storage.failures import check_length, is_unknown_host, java_error, storage_error, unknown_host
from airflow_tf.storage.kerberos import kerberos_error
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.spnego import SpnegoAuth, SpnegoError

_TIMEOUT_SECONDS = (10.0, 30.0)  # to connect, and between two bytes
_LONGEST_REASON = 300
_AVOID_SECONDS = 60.0  # afterwards the NameNode knows, or the DataNode is back


class WebHdfsFileSystem:
    """One HDFS cluster, by WebHDFS; several NameNode URLs are tried in turn."""

    def __init__(self, uri: Uri, options: StorageOptions) -> None:
        try:
            import hdfs  # an optional package, loaded in the mover only
        except ImportError as error:
            raise AirflowTfError(
                f"{uri} cannot be reached", "the package hdfs is not installed", "Install airflow-tf[hdfs]."
            ) from error
        self._uri, self._options = uri, options
        self._avoided, self._refusals = _Avoided(), 0
        self._namenodes = {urlsplit(url).netloc for url in options.url.split(";")}
        self._hdfs_error: type[Exception] = hdfs.HdfsError
        self._http_errors = (requests.RequestException, urllib3.exceptions.HTTPError, OSError)
        self._written_with = {"replication": options.replication, "blocksize": options.block_bytes}
        session = requests.Session()
        session.trust_env = False  # else REQUESTS_CA_BUNDLE overrides verify, and a proxy is asked for the cluster
        session.verify = options.verify
        if options.cert:
            session.cert = (options.cert, options.key) if options.key else options.cert
        session.headers.update(options.headers)
        session.cookies.update(options.cookies)
        if options.password is not None:
            session.auth = (options.user or "", options.password)
        elif options.kerberos:
            session.auth = SpnegoAuth(self._namenodes, options.kerberos_principal)
        self._client: Any = _client(hdfs, options, session)

    @contextlib.contextmanager
    def _translated(self, action: str, path: str) -> Iterator[None]:
        try:
            yield
        except AirflowTfError:
            raise
        except self._hdfs_error as error:
            failure = _hdfs_failure(error, action, self._uri.at(path))
            raise self._unless_others(failure) from error
        except SpnegoError as error:
            raise kerberos_error(str(error), self._options, action, self._uri.at(path)) from error
        except self._http_errors as error:
            raise self._http_failure(error, action, self._uri.at(path)) from error

    def _unless_others(self, failure: StorageError) -> StorageError:
        """Make a refusal of credentials worth a retry until every NameNode has given it; turn to the next one."""
        urls = self._client._urls  # noqa: SLF001 -- the client itself turns to the next on few errors only
        if isinstance(failure, StoragePermissionError) and "Authentication failure" in failure.why:
            self._refusals += 1
            if self._refusals < len(urls):
                failure = StorageUnavailableError(failure.what, failure.why, failure.todo)
        if failure.retryable:
            urls.rotate(-1)
        return failure

    def _http_failure(self, error: Exception, action: str, uri: str) -> StorageError:
        reason = str(error)[:_LONGEST_REASON]
        asked = urlsplit(getattr(getattr(error, "request", None), "url", None) or "")
        if asked.netloc and asked.netloc not in self._namenodes:
            self._avoided.add(asked.hostname or "")
            reason = f"the NameNode redirected to DataNode {asked.netloc}, which does not serve this host: {reason}"
        elif asked.hostname and len(self._namenodes) == 1 and is_unknown_host(str(error)):
            return unknown_host(asked.hostname, action, uri)
        return self._unless_others(storage_error(StorageUnavailableError, action, uri, reason))

    def stat(self, path: str) -> FileInfo:
        """Describe one path."""
        with self._translated("read", path):
            return _info(path, self._client.status(path))

    def list(self, path: str) -> Iterator[FileInfo]:
        """Yield the children of a directory."""
        with self._translated("list", path):
            for name, status in self._client.list(path, status=True):
                yield _info(posixpath.join(path, name), status)

    def read(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        """Yield ``length`` bytes from ``offset`` on; a DataNode that dies meanwhile ends the stream with an error.

        WebHDFS has no fail-over of its own: a DataNode that broke a stream is named to the NameNode as one to avoid.
        """
        if length <= 0:
            return
        avoided = self._avoided.names()
        wanted = {"offset": offset, "length": length} | ({"excludedatanodes": avoided} if avoided else {})
        with self._translated("read", path), contextlib.closing(self._client._open(path, **wanted)) as answer:  # noqa: SLF001 -- read() cannot avoid a DataNode
            self._avoided.saw(urlsplit(answer.url).hostname or "")
            try:
                yield from answer.iter_content(CHUNK_BYTES)
            except self._http_errors:
                self._avoided.add(urlsplit(answer.url).hostname or "")
                raise

    def checksum(self, path: str) -> FileChecksum | None:
        """Return what the DataNodes' checksums say; None from a server that does not know the call."""
        try:
            with self._translated("read the checksum of", path):
                found = self._client.checksum(path)
                block_bytes = self._client.status(path)["blockSize"]
        except StorageUnavailableError:
            raise
        except StorageError:
            return None
        return FileChecksum(found["algorithm"], bytes.fromhex(found["bytes"])[: found["length"]], block_bytes)

    def write(self, path: str, chunks: Iterable[bytes]) -> int:
        """Create or replace a file, and check the length that the NameNode has recorded.

        If ``chunks`` raises, the request is ended in good order first: the DataNode of a broken request may create the
        file after it was deleted here.
        """
        length = 0
        failure: BaseException | None = None

        def counted() -> Iterator[bytes]:
            nonlocal length, failure
            try:
                for chunk in chunks:
                    length += len(chunk)
                    yield chunk
            except Exception as error:  # noqa: BLE001 -- raised again below
                failure = error

        try:
            with self._translated("write", path):
                self._client.write(path, data=counted(), overwrite=True, **self._written_with)
            if failure is not None:
                raise failure  # noqa: TRY301 -- the handler below deletes the file for this failure too
            check_length(length, self.stat(path).size, self._uri.at(path))
        except BaseException:
            with contextlib.suppress(StorageError):  # the first error is the one to tell
                self.delete(path)
            raise
        return length

    def rename(self, source: str, target: str) -> None:
        """Move a file or directory without replacing.

        A plain RENAME moves *into* an existing directory and answers OK; ``renameoptions=NONE`` asks for the form
        that refuses. HttpFS ignores the option, so callers that must be sure look at the target afterwards.
        """
        with self._translated(f"rename {source} to", target):
            self._client._rename(source, destination=target, renameoptions="NONE")  # noqa: SLF001 -- rename() cannot

    def replace(self, source: str, target: str) -> None:
        """Move a file over another."""
        with self._translated(f"rename {source} to", target):
            self._client._rename(source, destination=target, renameoptions="OVERWRITE")  # noqa: SLF001 -- as above

    def delete(self, path: str) -> None:
        """Delete a file or a directory with all below it."""
        with self._translated("delete", path):
            self._client.delete(path, recursive=True)

    def make_dirs(self, path: str) -> None:
        """Create a directory and its parents."""
        with self._translated("create", path):
            self._client.makedirs(path)


class _Avoided:
    """Hosts of DataNodes that failed a short time ago, as far as others are known.

    The NameNode takes hosts, or ports of the transfer protocol, which a redirect does not tell.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._until, self._seen = clock, dict[str, float](), set[str]()

    def saw(self, host: str) -> None:
        """Note a host that serves data."""
        self._seen.add(host)

    def add(self, host: str) -> None:
        """Note a host that failed."""
        self._until[host] = self._clock() + _AVOID_SECONDS

    def names(self) -> str:
        """Return the hosts to avoid, joined by commas; empty if no other host is known."""
        now = self._clock()
        failed = {host for host, until in list(self._until.items()) if until > now}
        return ",".join(sorted(failed)) if self._seen - failed else ""


def _client(hdfs: Any, options: StorageOptions, session: Any) -> Any:  # noqa: ANN401 -- untyped, optional package
    if options.kerberos:
        return hdfs.Client(options.url, session=session, timeout=_TIMEOUT_SECONDS)
    return hdfs.InsecureClient(options.url, user=options.user, session=session, timeout=_TIMEOUT_SECONDS)


def _info(path: str, status: dict[str, Any]) -> FileInfo:
    return FileInfo(
        path=path,
        size=status["length"],
        is_dir=status["type"] == "DIRECTORY",
        mtime_ms=status["modificationTime"],
        file_id=str(status.get("fileId", "")),
    )


def _hdfs_failure(error: Any, action: str, uri: str) -> StorageError:  # noqa: ANN401 -- HdfsError of an untyped package
    message = error.message.decode(errors="replace") if isinstance(error.message, bytes) else str(error.message)
    if error.exception is not None:
        return java_error(error.exception, message, action, uri)
    if "Authentication failure" in message:
        return storage_error(StoragePermissionError, action, uri, message)
    if "is not a directory" in message:
        return storage_error(StorageError, action, uri, "it is a file")
    why = f"the answer is not Hadoop's: {message[:_LONGEST_REASON]!r}"
    return storage_error(StorageUnavailableError, action, uri, why)
