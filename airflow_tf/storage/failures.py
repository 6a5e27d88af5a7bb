"""Turns the failures of HDFS, as its Java classes name them, into our errors; once, for both clients."""

from __future__ import annotations

from airflow_tf.core.errors import (
    StorageError,
    StorageExistsError,
    StorageNoSpaceError,
    StorageNotFoundError,
    StoragePermissionError,
    StorageUnavailableError,
)

_CLASSES: dict[str, type[StorageError]] = {
    "FileNotFoundException": StorageNotFoundError,
    "AccessControlException": StoragePermissionError,
    "SecurityException": StoragePermissionError,
    "InvalidToken": StoragePermissionError,
    "FileAlreadyExistsException": StorageExistsError,
    "NSQuotaExceededException": StorageNoSpaceError,
    "DSQuotaExceededException": StorageNoSpaceError,
    "QuotaByStorageTypeExceededException": StorageNoSpaceError,
    "QuotaExceededException": StorageNoSpaceError,
    "SafeModeException": StorageUnavailableError,
    "StandbyException": StorageUnavailableError,
    "RetriableException": StorageUnavailableError,
    "ServerTooBusyException": StorageUnavailableError,
    # Of a DataNode that serves WebHDFS and has lost its NameNode.
    "EOFException": StorageUnavailableError,
    "ConnectException": StorageUnavailableError,
    "ConnectTimeoutException": StorageUnavailableError,
    "NoRouteToHostException": StorageUnavailableError,
    "SocketException": StorageUnavailableError,
    "SocketTimeoutException": StorageUnavailableError,
}
_UNAVAILABLE_TEXTS = ("could only be written to 0", "Zero blocklocations", "safe mode", "Failed on local exception")

_TODO: dict[type[StorageError], str] = {
    StorageNotFoundError: "Check the path.",
    StoragePermissionError: "Grant the user of the connection access, or use another connection.",
    StorageExistsError: "Choose another path, or remove what is there.",
    StorageNoSpaceError: "Free space or raise the quota.",
    StorageUnavailableError: "Check that the file system's servers run and are reachable from this host, then retry.",
}


def storage_error(kind: type[StorageError], action: str, uri: str, why: str) -> StorageError:
    """Build an error of class ``kind`` with the advice that belongs to it."""
    return kind(f"Cannot {action} {uri}", why.strip(), _TODO.get(kind, ""))


def is_unknown_host(text: str) -> bool:
    """Tell whether a client's error says that a host's name does not exist; that a name server is away is another."""
    return "Name or service not known" in text


def unknown_host(host: str, action: str, uri: str) -> StorageError:
    """Build the error for a name that does not exist: waiting does not help."""
    todo = "Correct the host in the URI or in the connection."
    return StorageError(f"Cannot {action} {uri}", f"this host cannot resolve the name {host}", todo)


def java_error(java_class: str, message: str, action: str, uri: str) -> StorageError:
    """Build our error for an exception of Hadoop, given its (qualified or short) class and message."""
    name = java_class.rpartition(".")[2].rpartition("$")[2]
    first_line = message.strip().splitlines()[0] if message.strip() else name
    kind = _CLASSES.get(name, StorageError)
    if kind is StorageError and any(text in message for text in _UNAVAILABLE_TEXTS):
        kind = StorageUnavailableError
    return storage_error(kind, action, uri, first_line)


def check_length(sent: int, stored: int, uri: str) -> None:
    """Raise an error worth a retry unless a written file has the length that was sent."""
    if sent != stored:
        why = f"{sent} bytes were sent, {stored} are stored"
        raise storage_error(StorageUnavailableError, "write", uri, why)
