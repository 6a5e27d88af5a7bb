"""Errors of airflow_tf: one root, a message that says what, why and what to do, and whether a retry can help.

Every error survives pickling and a trip through JSON (:func:`to_payload`, :func:`from_payload`), since most of
them are raised in a mover, supervisor or replica process and shown in an Airflow task's log.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar


class AirflowTfError(Exception):
    """Root of all errors that airflow_tf raises on purpose.

    :param what: what happened, naming the object (path, device, field).
    :param why: the cause, as far as it is known.
    :param todo: what the reader can do about it.
    """

    retryable: ClassVar[bool] = False

    def __init__(self, what: str, why: str = "", todo: str = "") -> None:
        self.what, self.why, self.todo = what, why, todo
        super().__init__(what, why, todo)

    def __str__(self) -> str:
        """Join the three parts into one line."""
        text = f"{self.what}: {self.why}" if self.why else self.what
        return f"{text.rstrip('.')}. {self.todo}" if self.todo else text


class DeclarationError(AirflowTfError):
    """A declaration (YAML or operator argument) is wrong; running it again cannot help."""


class TemplateError(DeclarationError):
    """A Jinja template is undefined, or its rendered value has the wrong type."""


class SessionConfigError(DeclarationError):
    """A session config has an unknown, ill-typed, contradictory or inapplicable field."""


class InputError(AirflowTfError):
    """Input data are not what they should be; the message names file, line and column."""


class StorageError(AirflowTfError):
    """A file system call failed."""


class StorageNotFoundError(StorageError):
    """A path, or every match of a glob, is missing."""


class StoragePermissionError(StorageError):
    """The file system refuses access."""


class StorageExistsError(StorageError):
    """The destination exists and is not ours to replace."""


class StorageNoSpaceError(StorageError):
    """A disk or a quota will not hold the data."""


class StorageUnavailableError(StorageError):
    """The file system does not answer, or cannot serve the call now."""

    retryable = True


class CancelledError(StorageError):
    """A transfer was stopped because another one of the same job failed."""


class SourceChangedError(StorageError):
    """A source file changed while it was being read."""

    retryable = True


class LedgerError(AirflowTfError):
    """The ledger refuses an operation or cannot be opened."""


class LedgerUnavailableError(LedgerError):
    """The ledger's database does not answer."""

    retryable = True


class DevicesNeverFitError(AirflowTfError):
    """No registered host can ever satisfy the request."""


class DevicesBusyError(AirflowTfError):
    """The request fits, but not now; the message names the holders.

    :param uuids: reserved devices that turned out to be in use, where it is these.
    """

    retryable = True

    def __init__(self, what: str, why: str = "", todo: str = "", uuids: Sequence[str] = ()) -> None:
        super().__init__(what, why, todo)
        self.uuids = tuple(uuids)


class DeviceLockError(AirflowTfError):
    """The host-wide lock of a device cannot be used."""


class SupervisorLostError(AirflowTfError):
    """The supervisor of a gang died or cannot be reached."""

    retryable = True


class ReplicaFailedError(AirflowTfError):
    """A replica ended without success; another attempt may end otherwise."""

    retryable = True


class UserCodeError(ReplicaFailedError):
    """The user's program itself is at fault; the same input fails again."""

    retryable = False


class ReplicaStoppedError(AirflowTfError):
    """A replica was stopped on request."""


class ReplicaTimeoutError(AirflowTfError):
    """A replica was stopped because its task's execution timeout is over."""

    retryable = True


class ViewDetachedError(AirflowTfError):
    """A task let go of its replica, which goes on; the next try attaches to it."""

    retryable = True


class CheckpointError(AirflowTfError):
    """A checkpoint is missing, incomplete, damaged or does not match its siblings."""


class PublishError(AirflowTfError):
    """A result could not be published."""


def _all_classes(root: type[AirflowTfError]) -> dict[str, type[AirflowTfError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        found |= _all_classes(child)
    return found


def to_payload(error: BaseException) -> dict[str, Any]:
    """Return a JSON-plain form of ``error``; foreign exceptions keep their class name in the text."""
    if isinstance(error, AirflowTfError):
        return {"class": type(error).__name__, "what": error.what, "why": error.why, "todo": error.todo}
    return {"class": "AirflowTfError", "what": f"{type(error).__name__}: {error}", "why": "", "todo": ""}


def from_payload(payload: dict[str, Any]) -> AirflowTfError:
    """Rebuild the error that :func:`to_payload` described; unknown classes become the root."""
    cls = _all_classes(AirflowTfError).get(str(payload.get("class")), AirflowTfError)
    return cls(str(payload.get("what", "")), str(payload.get("why", "")), str(payload.get("todo", "")))
