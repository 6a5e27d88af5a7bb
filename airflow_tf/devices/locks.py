"""One lock file per device, in one folder per host, so that all users and installations exclude each other.

The flock is the truth about a device: held means in use. The file's text only says by whom, and which process tree
the next holder must sweep first; it stays when its writer dies.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from airflow_tf.core.errors import DeviceLockError
from airflow_tf.core.identity import digest, readable

_RECORD_BYTES = 512
_FILE_MODE = 0o666
_FOLDER_MODE = 0o1777
_PROBE_RETRIES = 10
_PROBE_PAUSE_SECONDS = 0.01
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class LastHolder:
    """What a lock file says of its last holder: fencing token, pid and uid of the writer, boot of the host."""

    token: str
    pid: int
    uid: int
    boot_id: str


class DeviceLock:
    """The lock of one device of this host. Not reentrant; one object per holder."""

    def __init__(self, folder: Path, uuid: str) -> None:
        safe = readable(uuid, limit=100)
        self.uuid = uuid
        self.path = folder / f"{safe if safe == uuid else f'{safe}-{digest(uuid, length=8)}'}.lock"
        self._descriptor: int | None = None

    @property
    def fileno(self) -> int:
        """Descriptor that carries the lock, for handing it to a child process.

        :raises DeviceLockError: if the lock is not held.
        """
        if self._descriptor is None:
            raise DeviceLockError(f"the lock of device {self.uuid} is not held")
        return self._descriptor

    def try_acquire(self) -> bool:
        """Take the lock if nobody holds it.

        A probe (:meth:`is_held`) has it shared for an instant; the short retries keep it from looking like a holder.
        """
        descriptor = self._open()
        for attempt in range(_PROBE_RETRIES):
            if _try_flock(descriptor, fcntl.LOCK_EX):
                self._descriptor = descriptor
                return True
            if attempt < _PROBE_RETRIES - 1:
                time.sleep(_PROBE_PAUSE_SECONDS)
        os.close(descriptor)
        return False

    def release(self) -> None:
        """Drop the lock (idempotent). The token stays in the file: the next holder sweeps it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def is_held(self) -> bool:
        """Tell whether anybody holds the lock now, without taking it from anybody."""
        with contextlib.suppress(FileNotFoundError):  # never used yet
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                return not _try_flock(descriptor, fcntl.LOCK_SH)
            finally:
                os.close(descriptor)
        return False

    def read_token(self) -> str | None:
        """Return the token whose process tree may still be on the device; None if there is none in this boot."""
        holder = self.read_holder()
        return holder.token if holder is not None and holder.token else None

    def read_holder(self) -> LastHolder | None:
        """Return what the file says of its last holder; None for a new file or one of an earlier boot."""
        try:
            holder = LastHolder(**json.loads(self.path.read_text()))
        except (FileNotFoundError, ValueError, TypeError):
            return None
        return holder if holder.boot_id == _boot_id() else None

    def write_token(self, token: str) -> None:
        """Record the process tree that is about to use the device; an empty token says that the tree was swept.

        :raises DeviceLockError: if the lock is not held.
        """
        record = json.dumps(asdict(LastHolder(token, os.getpid(), os.getuid(), _boot_id())))
        # One write of fixed size: a reader or a kill never sees half a record.
        os.pwrite(self.fileno, record.ljust(_RECORD_BYTES).encode(), 0)

    def _open(self) -> int:
        """Open the file, or create it for all users.

        Without O_CREAT first: in a sticky folder the kernel refuses O_CREAT on a file of another user
        (fs.protected_regular). Created under another name and linked, so that nobody sees it before its mode is set.
        """
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with contextlib.suppress(FileNotFoundError):
                return os.open(self.path, flags)
            _create_for_all(self.path)
            return os.open(self.path, flags)
        except OSError as error:
            raise DeviceLockError(
                f"cannot open the lock file {self.path} of device {self.uuid}",
                str(error),
                "Every user who runs training on this host needs write access to the folder [airflow_tf] lock_dir.",
            ) from error


def ensure_lock_folder(path: Path) -> None:
    """Make the folder of device locks, open to all users of the host (mode 1777 like ``/tmp``).

    :raises DeviceLockError: if it cannot be made or written.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        found = path.stat()
        if found.st_uid == os.getuid() and stat.S_IMODE(found.st_mode) != _FOLDER_MODE:
            path.chmod(_FOLDER_MODE)
    except OSError as error:
        raise DeviceLockError(f"cannot make the folder of device locks {path}", str(error), _remedy(path)) from error
    if not os.access(path, os.W_OK | os.X_OK):
        raise DeviceLockError(f"cannot write the folder of device locks {path}", "no permission", _remedy(path))


def _remedy(path: Path) -> str:
    return (
        f"Run 'install -d -m 1777 {path}' as root, or set [airflow_tf] lock_dir to a local folder that all users "
        "of this host's devices share."
    )


def _create_for_all(path: Path) -> None:
    own = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
    descriptor = os.open(own, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        os.fchmod(descriptor, _FILE_MODE)  # not subject to the umask
        with contextlib.suppress(FileExistsError):  # another process was first; its file is as good
            os.link(own, path)
    finally:
        os.close(descriptor)
        own.unlink()


def _try_flock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _boot_id() -> str:
    return _BOOT_ID.read_text().strip()
