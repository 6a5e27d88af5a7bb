"""Get devices for a gang: look, take back what dead supervisors left, reserve; later lock what was reserved."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from airflow_tf.core.devices import DeviceRequest, Host, Member
from airflow_tf.core.errors import DevicesBusyError
from airflow_tf.core.identity import GangKey, digest
from airflow_tf.core.ledger import ConfirmedMember, GangLedger, Granted, Refused, Turn
from airflow_tf.core.settings import Settings
from airflow_tf.core.states import MemberState
from airflow_tf.devices.locks import DeviceLock, ensure_lock_folder
from airflow_tf.devices.registry import read_all
from airflow_tf.supervisor.sweep import kill_tree, mark_of

log = logging.getLogger(__name__)

_CLOCK_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_PID_REUSE_SLACK_SECONDS = 1.0


def this_host() -> Host:
    """Return this host: one boot of one machine, seen from one pid namespace and one root directory.

    The mount namespace is told by its root directory, not by its number: a service with a private ``/tmp`` has
    another namespace at each restart, and sees the same files.
    """
    name = socket.gethostname()
    root = Path("/").stat()
    place = digest(Path("/proc/self/ns/pid").readlink(), root.st_dev, root.st_ino, length=8)
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return Host(f"{digest(_machine_id(), name, length=8)}-{place}", name, boot_id)


def acquire(
    ledger: GangLedger,
    settings: Settings,
    key: GangKey,
    request: DeviceRequest,
    replicas: Sequence[int],
    turn: Turn = Turn(),  # noqa: B008 (frozen)
) -> Granted | Refused:
    """Reserve devices of this host for ``replicas``, all or nothing; those that have some keep them.

    :raises DevicesNeverFitError: if this host can never satisfy the request.
    :raises DeviceLockError: if the folder of device locks cannot be used.
    """
    ensure_lock_folder(settings.lock_dir)
    host = this_host()
    readings = tuple(read_all(settings, request.kind))  # a tuple: the ledger digests it once for both calls
    ledger.register_host(host, readings)
    if reclaim(ledger, settings, host):
        readings = tuple(read_all(settings, request.kind))  # what was on the devices has just been ended
    return ledger.reserve(key, request, replicas, host, readings, turn)


def reclaim(ledger: GangLedger, settings: Settings, host: Host) -> list[ConfirmedMember]:
    """Take back the devices of supervisors that died on this host; return the members they were taken from.

    Only under the devices' locks and after a sweep: a device that is locked, or whose processes will not die, stays.
    """
    return [found for found in ledger.confirmed_on(host) if _is_gone(found) and _take_back(ledger, settings, found)]


def usable_members(
    ledger: GangLedger, settings: Settings, key: GangKey, replicas: Sequence[int], *, is_supervised: bool
) -> tuple[Member, ...] | None:
    """Return the devices of ``replicas`` that are reserved, or that the gang's supervisor has; None if any has none.

    A supervisor that lives may not be the one that confirmed them: what a dead one left is taken back before.

    :param is_supervised: whether a supervisor of the gang lives.
    """
    found = [ledger.member(key, number) for number in replicas]
    if any(member is not None and member.state == MemberState.CONFIRMED for member in found):
        ensure_lock_folder(settings.lock_dir)
        host = this_host()
        ledger.register_host(host, [])  # ends what an earlier boot held
        reclaim(ledger, settings, host)
        found = [ledger.member(key, number) for number in replicas]
    usable = [member for member in found if member and (is_supervised or member.state == MemberState.RESERVED)]
    return tuple(usable) if len(usable) == len(replicas) else None


def take_devices(member: Member, settings: Settings) -> list[DeviceLock]:
    """Lock all devices of a member and end what their last holders left running.

    :raises DevicesBusyError: if a device is locked or cannot be swept, naming it; no lock is kept then.
    """
    ensure_lock_folder(settings.lock_dir)
    locks, obstacle = _lock_all(member, settings)
    unusable = member.devices[len(locks) :][:1] if obstacle else member.devices
    obstacle = obstacle or _sweep(locks)
    if obstacle:
        _release(locks)
        raise DevicesBusyError(
            f"the devices of replica {member.replica} (reservation {member.reservation_id}) cannot be used",
            obstacle,
            "They are free again when that has ended; 'airflow tf devices' shows the holders.",
            uuids=[device.uuid for device in unusable],
        )
    return locks


def _take_back(ledger: GangLedger, settings: Settings, found: ConfirmedMember) -> bool:
    locks, obstacle = _lock_all(found.member, settings)
    try:
        obstacle = obstacle or _sweep(locks, [found.token] if found.token else [])
        if obstacle:
            log.warning("%s: its supervisor (pid %s) died, but %s", found.gang_label, found.supervisor_pid, obstacle)
            return False
        ledger.revoke(found.member, f"its supervisor (pid {found.supervisor_pid}) died")
        log.info("%s: its supervisor (pid %s) died; devices taken back", found.gang_label, found.supervisor_pid)
        return True
    finally:
        _release(locks)


def _is_gone(found: ConfirmedMember) -> bool:
    """Tell whether a supervisor has ended: its pid is free, or is that of a process that started after it confirmed."""
    try:
        mark = mark_of(found.supervisor_pid)
    except ProcessLookupError:
        return True
    return mark.start_ticks / _CLOCK_TICKS_PER_SECOND > found.confirmed_seconds + _PID_REUSE_SLACK_SECONDS


def _lock_all(member: Member, settings: Settings) -> tuple[list[DeviceLock], str]:
    """Lock the member's devices; return the locks got and, in words, the first obstacle."""
    locks: list[DeviceLock] = []
    for device in member.devices:
        lock = DeviceLock(settings.lock_dir, device.uuid, member.share_percent)
        if not lock.try_acquire():
            return locks, f"{device.uuid} is locked by {lock.describe_holders()}"
        locks.append(lock)
    return locks, ""


def _sweep(locks: Sequence[DeviceLock], tokens: Sequence[str] = ()) -> str:
    """End the process trees last seen on locked devices; return, in words, what cannot be ended."""
    left = dict.fromkeys(tokens)
    for lock in locks:
        for holder in lock.left_behind():
            if holder.uid != os.getuid() and _has_processes(holder.uid):
                return f"{lock.uuid} was last used by uid {holder.uid}, whose processes this user cannot look into"
            left[holder.token] = None
    for token in left:
        if survivors := kill_tree(token):
            return f"processes {survivors} of its last holder survive SIGKILL"
    for lock in locks:
        lock.write_token("")
    return ""


def _has_processes(uid: int) -> bool:
    return any(process.info["uids"].real == uid for process in psutil.process_iter(["uids"]) if process.info["uids"])


def _release(locks: Iterable[DeviceLock]) -> None:
    for lock in locks:
        lock.release()


def _machine_id() -> str:
    """Return the machine's id; empty in a container without one, where the host name alone must do."""
    try:
        return Path("/etc/machine-id").read_text().strip()
    except FileNotFoundError:
        return ""
