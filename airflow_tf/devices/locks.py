"""One lock file per device, in one folder per host, so that all users and installations exclude each other.

A device has 100 slots, one byte each, which the kernel locks for an open file description and frees when its last
holder dies. An exclusive holder has all slots, a share of n % any n of them. The locks are the truth about a device:
a locked slot is in use. The file's text only says by whom, and which process trees the next holder must sweep first;
it stays when its writer dies. See docs/adr/0007.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
import struct
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from airflow_tf.core.errors import DeviceLockError
from airflow_tf.core.identity import digest, readable

SLOTS = 100

_GATE = SLOTS  # the byte behind the slots: locked while slots are chosen
_GATE_SECONDS = 1.0
_GATE_PAUSE_SECONDS = 0.001
_RECORD_BYTES = 256  # divides a page: a kill never leaves half a record
_STRUCT_FLOCK = "hhqqi4x"  # type, whence, start, length, pid: must be 0
_FILE_MODE = 0o666
_FOLDER_MODE = 0o1777
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True, slots=True)
class LastHolder:
    """What a slot says of its last holder: fencing token, pid and uid of the writer, boot of the host."""

    token: str
    pid: int
    uid: int
    boot_id: str


class DeviceLock:
    """The lock of one device of this host, or of a share of it. Not reentrant; one object per holder."""

    def __init__(self, folder: Path, uuid: str, share_percent: int = SLOTS) -> None:
        safe = readable(uuid, limit=100)
        self.uuid = uuid
        self.path = folder / f"{safe if safe == uuid else f'{safe}-{digest(uuid, length=8)}'}.lock"
        self._share_percent = share_percent
        self._descriptor: int | None = None
        self._slots: list[int] = []

    @property
    def fileno(self) -> int:
        """Descriptor that carries the lock, for handing it to a child process.

        :raises DeviceLockError: if the lock is not held.
        """
        if self._descriptor is None:
            raise DeviceLockError(f"the lock of device {self.uuid} is not held")
        return self._descriptor

    def try_acquire(self) -> bool:
        """Take as many slots as the share has, if so many are free; else none."""
        descriptor = self._open()
        slots = self._take(descriptor)
        if not slots:
            os.close(descriptor)
            return False
        self._descriptor, self._slots = descriptor, slots
        return True

    def release(self) -> None:
        """Drop the lock (idempotent). The token stays in the file: the next holder sweeps it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor, self._slots = None, []

    def give_back(self) -> None:
        """Drop the lock of a device that was swept; where a full disk keeps its token, the next holder sweeps again."""
        with contextlib.suppress(OSError):
            self.write_token("")
        self.release()

    def is_held(self) -> bool:
        """Tell whether anybody holds the device or a share of it now, without taking it from anybody."""
        return bool(self._held_slots())

    def held_percent(self) -> int:
        """Return how much of the device is held now, by whomever, without taking it from anybody."""
        return len(self._held_slots())

    def holders(self) -> tuple[LastHolder, ...]:
        """Return who says to hold the device or a share of it now; one that has written nothing yet is missing."""
        held = self._held_slots()
        return tuple(dict.fromkeys(holder for slot, holder in self._read_records() if slot in held))

    def describe_holders(self) -> str:
        """Return the present holders in words."""
        return ", ".join(f"pid {holder.pid} (uid {holder.uid})" for holder in self.holders()) or "an unknown process"

    def left_behind(self) -> tuple[LastHolder, ...]:
        """Return those whose process trees may still be on the device though they hold no slot of it any more.

        A free slot counts as well as those of this lock: who died with it may still use the device.
        """
        records = self._read_records()  # before the locks: what a slot says that is free later is of the past
        others = self._held_slots() - set(self._slots)
        return tuple(dict.fromkeys(holder for slot, holder in records if holder.token and slot not in others))

    def write_token(self, token: str) -> None:
        """Record the process tree that is about to use the device; an empty token says that the tree was swept.

        :raises DeviceLockError: if the lock is not held.
        """
        record = json.dumps(asdict(LastHolder(token, os.getpid(), os.getuid(), _boot_id()))).encode()
        if len(record) > _RECORD_BYTES:
            raise DeviceLockError(f"the token of {len(record)} bytes does not fit the lock file {self.path}")
        descriptor = self.fileno
        for first, count in _runs(self._slots):
            os.pwrite(descriptor, record.ljust(_RECORD_BYTES) * count, first * _RECORD_BYTES)

    def _take(self, descriptor: int) -> list[int]:
        """Lock free slots of the file; empty if there are too few.

        The gate makes two takers choose one after the other: neither fails for slots that the other gives back.
        """
        if len(_free_slots(descriptor)) < self._share_percent:
            return []
        deadline = time.monotonic() + _GATE_SECONDS
        while not _try_lock(descriptor, _GATE, 1):
            if time.monotonic() > deadline:
                return []
            time.sleep(_GATE_PAUSE_SECONDS)
        try:
            slots = _free_slots(descriptor)[: self._share_percent]
            is_enough = len(slots) == self._share_percent
            return slots if is_enough and all(_try_lock(descriptor, *run) for run in _runs(slots)) else []
        finally:
            _control(descriptor, fcntl.F_OFD_SETLK, fcntl.F_UNLCK, _GATE, 1)

    def _held_slots(self) -> set[int]:
        with contextlib.suppress(FileNotFoundError):  # never used yet
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                return set(range(SLOTS)).difference(_free_slots(descriptor))
            finally:
                os.close(descriptor)
        return set()

    def _read_records(self) -> list[tuple[int, LastHolder]]:
        """Return slot and last holder, where a slot has a holder of this boot."""
        with contextlib.suppress(FileNotFoundError):  # never used yet
            text, boot_id = self.path.read_bytes(), _boot_id()
            records = [(slot, _parse(text[slot * _RECORD_BYTES :][:_RECORD_BYTES])) for slot in range(SLOTS)]
            return [(slot, holder) for slot, holder in records if holder is not None and holder.boot_id == boot_id]
        return []

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


def _parse(record: bytes) -> LastHolder | None:
    try:
        return LastHolder(**json.loads(record))
    except (ValueError, TypeError):  # never written
        return None


def _runs(slots: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the number of slots that follow each other."""
    first = 0
    for position, slot in enumerate(slots):
        if position + 1 == len(slots) or slots[position + 1] != slot + 1:
            yield slots[first], position + 1 - first
            first = position + 1


def _free_slots(descriptor: int) -> list[int]:
    """Return the slots that no other open file description has locked."""
    if _is_free(descriptor, 0, SLOTS):
        return list(range(SLOTS))
    return [slot for slot in range(SLOTS) if _is_free(descriptor, slot, 1)]


def _is_free(descriptor: int, first: int, count: int) -> bool:
    answer = _control(descriptor, fcntl.F_OFD_GETLK, fcntl.F_WRLCK, first, count)
    found, *_ = struct.unpack(_STRUCT_FLOCK, answer)
    return bool(found == fcntl.F_UNLCK)


def _try_lock(descriptor: int, first: int, count: int) -> bool:
    try:
        _control(descriptor, fcntl.F_OFD_SETLK, fcntl.F_WRLCK, first, count)
    except (BlockingIOError, PermissionError):  # POSIX allows both answers
        return False
    return True


def _control(descriptor: int, command: int, kind: int, first: int, count: int) -> bytes:
    return fcntl.fcntl(descriptor, command, struct.pack(_STRUCT_FLOCK, kind, os.SEEK_SET, first, count, 0))


def _boot_id() -> str:
    return _BOOT_ID.read_text().strip()
