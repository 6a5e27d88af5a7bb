"""Cells of the kill matrix that need no Airflow: supervisor, replicas and ledger with real processes."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_tf.core.checkpoint import verify
from airflow_tf.core.devices import DeviceRequest
from airflow_tf.core.errors import DevicesBusyError, SupervisorLostError
from airflow_tf.core.identity import GangKey
from airflow_tf.core.ledger import Granted, Refused, Turn
from airflow_tf.core.settings import Settings
from airflow_tf.core.states import AttemptState, ExitCause
from airflow_tf.devices.locks import DeviceLock
from airflow_tf.ledger import Ledger, open_ledger
from airflow_tf.supervisor.acquire import acquire, take_devices
from airflow_tf.supervisor.health import DEVICE_LOOK_SECONDS
from airflow_tf.testing.nvml import Gpu, SimulatedNvml
from tests.airflow.matrix.cells import SAVING, STARTING, TRAINING, WAITING, Cell, of_event
from tests.airflow.matrix.clocks import Clocks
from tests.airflow.matrix.held import HeldGang
from tests.supervisor.harness import Gang, Watch, is_alive, kill, wait_for

pytestmark = [pytest.mark.airflow, pytest.mark.slow, pytest.mark.usefixtures("no_processes_left")]

HOUR_SECONDS = 3600
EARLIER_BOOT = "0000-earlier-boot"


@pytest.fixture
def held(make_gang: Callable[..., Gang], tmp_path: Path) -> HeldGang:
    return HeldGang(make_gang(), tmp_path / "gates")


def cells(event: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("cell", of_event(event), ids=lambda cell: cell.id)


def other_gang(ledger: Ledger, name: str = "other") -> GangKey:
    key = GangKey(ledger.ledger_id, "dag", name, "train")
    ledger.open_gang(key, 1, f"/nowhere/{name}")
    return key


def assert_succeeds(held: HeldGang, watch: Watch, resumed_at: int | None = None) -> None:
    """Let a try go on; it succeeds, gives its device back, and has begun where it should."""
    held.open()
    assert watch.end().state is AttemptState.SUCCEEDED, watch.infos
    if resumed_at is not None:
        assert watch.line("resumed at ") == str(resumed_at)
    wait_for(lambda: held.gang.ledger.member(held.gang.key, 0) is None, "the device's release")


# --- disk full ---------------------------------------------------------------------------------------------------


def limit_files(pids: list[int], limit: int) -> None:
    """Refuse every write that makes a file longer than ``limit``; the kernel says EFBIG where a full disk is ENOSPC."""
    for pid in pids:
        _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit, hard))


@cells("disk-full")
def test_disk_full(held: HeldGang, cell: Cell) -> None:
    watch = held.start(cell.phase)
    complete, supervisor = held.complete(), held.gang.supervisor_pid()
    assert supervisor is not None
    pid = held.arrivals(cell.phase)[-1]
    limit_files([supervisor, pid], 0)
    held.open(STARTING, TRAINING, SAVING)
    with pytest.raises(SupervisorLostError, match="could not be run"):
        watch.end()
    assert not is_alive(pid)
    limit_files([supervisor], resource.RLIM_INFINITY)
    wait_for(lambda: held.gang.ledger.member(held.gang.key, 0) is None, "the device's release")
    if complete is not None:
        verify(complete)
    assert_succeeds(held, held.start(), None if complete is None else 3)


# --- clocks ------------------------------------------------------------------------------------------------------


@pytest.fixture
def clocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clocks:
    return Clocks(tmp_path, monkeypatch)


@pytest.fixture
def clocked(clocks: Clocks, make_gang: Callable[..., Gang], tmp_path: Path) -> HeldGang:
    return HeldGang(make_gang(python=str(clocks.python)), tmp_path / "gates")


@cells("clock-back")
def test_clock_back(clocked: HeldGang, clocks: Clocks, settings: Settings, cell: Cell) -> None:
    ledger = clocked.gang.ledger
    waiting = acquire(ledger, settings, other_gang(ledger), DeviceRequest("cpu"), [0])
    assert isinstance(waiting, Granted)
    watch = clocked.start(cell.phase, restarts=1)
    (pid,) = clocked.arrivals(STARTING)
    clocks.move(wall_seconds=-HOUR_SECONDS)
    for path in clocked.checkpoints.iterdir():  # what was written before seems to come from the future
        os.utime(path, (path.stat().st_atime + HOUR_SECONDS, path.stat().st_mtime + HOUR_SECONDS))
    newer = clocked.checkpoints / "ck-13"
    wait_for(lambda: clocked.complete() == str(newer), "a checkpoint after the step back")
    assert ledger.member(other_gang(ledger), 0) is not None  # neither expired nor given to another
    kill(pid, signal.SIGKILL)
    clocked.open()
    assert watch.end().state is AttemptState.SUCCEEDED
    assert int(watch.line("resumed at ")) >= 13
    ledger.release(waiting.members[0])


@cells("suspend")
def test_suspend(clocked: HeldGang, clocks: Clocks, settings: Settings, cell: Cell) -> None:
    ledger = clocked.gang.ledger
    if cell.phase == WAITING:
        mine = acquire(ledger, settings, clocked.gang.key, DeviceRequest("cpu"), [0])
        assert isinstance(mine, Granted)
        clocks.move(boot_seconds=HOUR_SECONDS)
        assert ledger.member(clocked.gang.key, 0) is None
        others = acquire(ledger, settings, other_gang(ledger), DeviceRequest("cpu"), [0])
        assert isinstance(others, Granted)
        assert_succeeds(clocked, clocked.start())  # it reserves anew
        ledger.release(others.members[0])
        return
    watch = clocked.start(cell.phase)
    both = DeviceRequest("cpu", per_replica=2)
    clocks.move(boot_seconds=HOUR_SECONDS)
    assert isinstance(acquire(ledger, settings, other_gang(ledger), both, [0]), Refused)
    ledger.withdraw(other_gang(ledger))
    assert_succeeds(clocked, watch)
    assert len(clocked.arrivals(STARTING)) == 1


# --- the host ----------------------------------------------------------------------------------------------------


def reboot(settings: Settings) -> None:
    """Make rows and lock files those of an earlier boot; supervisor lock and socket lie there without a process."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    connection = sqlite3.connect(settings.ledger_url.removeprefix("sqlite:///"))
    with connection:
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            for _, column, *_ in connection.execute(f"PRAGMA table_info({table})").fetchall():
                connection.execute(f"UPDATE {table} SET {column} = ? WHERE {column} = ?", (EARLIER_BOOT, boot_id))
    connection.close()
    for path in settings.lock_dir.glob("*.lock"):
        path.write_text(path.read_text().replace(boot_id, EARLIER_BOOT.ljust(len(boot_id))))


@cells("reboot")
def test_reboot(held: HeldGang, settings: Settings, cell: Cell) -> None:
    ledger = held.gang.ledger
    if cell.phase == WAITING:
        assert isinstance(acquire(ledger, settings, held.gang.key, DeviceRequest("cpu"), [0]), Granted)
        reboot(settings)
        everything = acquire(ledger, settings, other_gang(ledger), DeviceRequest("cpu", per_replica=2), [0])
        assert isinstance(everything, Granted)
        ledger.release(everything.members[0])
        assert_succeeds(held, held.start())
        return
    watch = held.start(cell.phase)
    complete, pid = held.complete(), held.arrivals(cell.phase)[-1]
    kill(held.gang.supervisor_pid(), signal.SIGKILL)
    with pytest.raises(SupervisorLostError):
        watch.end()
    wait_for(lambda: not is_alive(pid), "the replica's end")
    assert (held.gang.folder / "supervisor.sock").exists()
    reboot(settings)
    everything = acquire(ledger, settings, other_gang(ledger), DeviceRequest("cpu", per_replica=2), [0])
    assert isinstance(everything, Granted), everything
    ledger.release(everything.members[0])
    if complete is not None:
        verify(complete)
    assert_succeeds(held, held.start(), None if complete is None else 3)


@cells("two-homes")
def test_two_homes(held: HeldGang, settings: Settings, tmp_path: Path, cell: Cell) -> None:
    """Both have two slots, the same two: they are devices of the host."""
    second = replace(settings, home=tmp_path / "second", ledger_url=f"sqlite:///{tmp_path / 'second' / 'ledger.db'}")
    second.home.mkdir(mode=0o700)
    if cell.phase == WAITING:
        takes_another_device_than_the_locked_one(held, settings, second)
        return
    watch = held.start(cell.phase)
    ledger = open_ledger(second)
    both = DeviceRequest("cpu", per_replica=2)
    refused = acquire(ledger, second, other_gang(ledger), both, [0])
    assert isinstance(refused, Refused)
    assert str(held.gang.supervisor_pid()) in str(refused)
    assert_succeeds(held, watch)
    wait_for(lambda: isinstance(acquire(ledger, second, other_gang(ledger), both, [0]), Granted), "both devices")


def takes_another_device_than_the_locked_one(held: HeldGang, settings: Settings, second: Settings) -> None:
    """Both installations have reserved the same device, and the other one takes it first: no try is lost."""
    ledger, theirs = held.gang.ledger, open_ledger(second)
    reserved = [
        acquire(ledger, settings, held.gang.key, DeviceRequest("cpu"), [0]),
        acquire(theirs, second, other_gang(theirs), DeviceRequest("cpu"), [0]),
    ]
    assert isinstance(reserved[0], Granted)
    assert isinstance(reserved[1], Granted)
    assert reserved[0].members[0].devices == reserved[1].members[0].devices
    (device,) = reserved[0].members[0].devices
    locks = take_devices(reserved[1].members[0], second)
    with pytest.raises(DevicesBusyError, match=f"{device.uuid} is locked by"):
        held.gang.start(held.program, tries_left=3).end()
    for lock in locks:
        lock.release()
    watch = held.start(STARTING)  # the same try looks again
    member = ledger.member(held.gang.key, 0)
    assert member is not None
    assert member.devices != (device,)
    assert_succeeds(held, watch)


@cells("vanish-device")
def test_vanish_device(held: HeldGang, nvml: SimulatedNvml, settings: Settings, cell: Cell) -> None:
    ledger, key = held.gang.ledger, held.gang.key
    nvml.write([Gpu(uuid="GPU-1"), Gpu(uuid="GPU-2")])
    if cell.phase == WAITING:
        locks = [DeviceLock(settings.lock_dir, f"GPU-{number}") for number in (1, 2)]
        assert all(lock.try_acquire() for lock in locks)
        assert isinstance(acquire(ledger, settings, key, DeviceRequest("gpu"), [0]), Refused)
        nvml.write([Gpu(uuid="GPU-2")])
        assert "GPU-2" in str(acquire(ledger, settings, key, DeviceRequest("gpu"), [0]))
        for lock in locks:
            lock.release()
    else:
        assert isinstance(acquire(ledger, settings, key, DeviceRequest("gpu", uuids=("GPU-1",)), [0]), Granted)
        watch = held.start(cell.phase)
        nvml.write([Gpu(uuid="GPU-2")])
        outcome = watch.end(DEVICE_LOOK_SECONDS + 60)
        assert (outcome.state, outcome.cause) == (AttemptState.FAILED, ExitCause.DEVICE_LOST)
        assert outcome.cause.may_restart
        wait_for(lambda: ledger.member(key, 0) is None, "the reservation's end")
    granted = acquire(ledger, settings, key, DeviceRequest("gpu"), [0])
    assert isinstance(granted, Granted)
    assert [device.uuid for device in granted.members[0].devices] == ["GPU-2"]
    assert_succeeds(held, held.start())


@cells("gang-vanish-device")
def test_gang_vanish_device(
    make_gang: Callable[..., Gang], nvml: SimulatedNvml, settings: Settings, tmp_path: Path, cell: Cell
) -> None:
    held = HeldGang(make_gang(count=2), tmp_path / "gates")
    ledger, key, gang = held.gang.ledger, held.gang.key, {"strategy": "sync", "roles": {"worker": 2}}
    nvml.write([Gpu(uuid="GPU-1"), Gpu(uuid="GPU-2")])
    granted = acquire(ledger, settings, key, DeviceRequest("gpu"), [0, 1])
    assert isinstance(granted, Granted)
    lost = granted.members[0].devices[0].uuid
    left = ({"GPU-1", "GPU-2"} - {lost}).pop()
    watch = held.start(cell.phase, **gang)
    peer = held.gang.start(held.program, replica=1, tries_left=3, **gang)
    nvml.write([Gpu(uuid=left), Gpu(uuid="GPU-3")])
    outcome = watch.end(DEVICE_LOOK_SECONDS + 60)
    assert (outcome.state, outcome.cause) == (AttemptState.FAILED, ExitCause.DEVICE_LOST)
    assert outcome.cause.may_restart
    other = peer.end()
    assert (other.state, other.cause) == (AttemptState.FAILED, ExitCause.VICTIM)
    wait_for(lambda: not any(ledger.member(key, replica) for replica in (0, 1)), "the reservation's end")
    granted = acquire(ledger, settings, key, DeviceRequest("gpu"), [0, 1])
    assert isinstance(granted, Granted)
    assert {device.uuid for member in granted.members for device in member.devices} == {left, "GPU-3"}
    assert_succeeds(held, held.start(**gang))


# --- nobody looks ---------------------------------------------------------------------------------------------------


@cells("triggerer-down")
def test_triggerer_down(held: HeldGang, settings: Settings, cell: Cell) -> None:
    ledger, key = held.gang.ledger, held.gang.key
    if cell.phase == WAITING:
        both = DeviceRequest("cpu", per_replica=2)
        holding = acquire(ledger, settings, other_gang(ledger, "holder"), both, [0])
        assert isinstance(holding, Granted)
        assert isinstance(acquire(ledger, settings, key, both, [0], Turn(look_seconds=1.0)), Refused)
        ledger.release(holding.members[0])
        behind = other_gang(ledger, "behind")
        assert isinstance(acquire(ledger, settings, behind, both, [0]), Refused)
        wait_for(lambda: isinstance(acquire(ledger, settings, behind, both, [0]), Granted), "its turn", 15)
        return
    watch = held.start(cell.phase, leaves=True, orphan_grace_seconds=3.0)
    assert watch.thread is not None
    watch.thread.join(30)
    assert (watch.outcome, watch.error) == (None, None)
    (pid,) = held.arrivals(STARTING)
    wait_for(lambda: not is_alive(pid), "the end of the orphan")
    wait_for(lambda: ledger.member(key, 0) is None, "the device's release")
    outcome = ledger.replicas(key)[0].outcome
    assert outcome is not None
    assert outcome.state is AttemptState.STOPPED
    assert outcome.checkpoint is not None
    verify(outcome.checkpoint)


# --- hanging -----------------------------------------------------------------------------------------------------


@cells("stop-replica")
def test_stop_replica(held: HeldGang, cell: Cell) -> None:
    watch = held.start(cell.phase, restarts=1, progress_timeout_seconds=3.0)
    complete, pid = held.complete(), held.arrivals(cell.phase)[-1]
    kill(pid, signal.SIGSTOP)
    wait_for(lambda: len(held.arrivals(STARTING)) == 2, "another process")
    assert not is_alive(pid)
    if complete is not None:
        verify(complete)
    assert_succeeds(held, watch, None if complete is None else 3)
    record = held.gang.ledger.replicas(held.gang.key)[0]
    assert record.attempts == 2
