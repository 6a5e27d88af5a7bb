"""Devices are given only when the ledger, the lock and the sweep all say that nobody is on them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import pytest

from airflow_tf.core.devices import DeviceRequest
from airflow_tf.core.errors import DeviceLockError, DevicesBusyError, DevicesNeverFitError
from airflow_tf.core.identity import FENCE_VARIABLE, GangKey, View, make_token
from airflow_tf.core.ledger import Granted, Refused
from airflow_tf.core.states import AttemptState
from airflow_tf.devices.locks import DeviceLock, LastHolder
from airflow_tf.supervisor import acquire as module
from airflow_tf.supervisor.acquire import acquire, reclaim, take_devices, this_host, usable_members
from airflow_tf.supervisor.sweep import find_tree, kill_tree

pytestmark = pytest.mark.usefixtures("no_processes_left")

REPLICA = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
SUPERVISOR = """
import json, os, subprocess, sys, time
from airflow_tf.core.settings import Settings
from airflow_tf.core.identity import GangKey, View
from airflow_tf.ledger import open_ledger
from airflow_tf.supervisor.acquire import take_devices
settings, key, token, replica = json.loads(sys.argv[1])
ledger = open_ledger(Settings.from_json(settings))
key = GangKey(**key)
member = ledger.member(key, 0)
ledger.confirm(member, os.getpid())
locks = take_devices(member, Settings.from_json(settings))
ledger.open_gang(key, 1, "/run")
ledger.enter(key, 0, View("ti", 1, 1))
for lock in locks:
    lock.write_token(token)
ledger.start_attempt(key, 0, 1, member, token)
subprocess.Popen([sys.executable, "-c", replica], env=os.environ | {"AIRFLOW_TF_FENCE": token}, start_new_session=True)
print("up", flush=True)
time.sleep(600)
"""


@pytest.fixture
def key(ledger):
    return lambda dag_id: GangKey(ledger.ledger_id, dag_id, "run x", "train")


@pytest.fixture
def grant(ledger, settings, key):
    def call(dag_id, replicas=(0,), **demands):
        return acquire(ledger, settings, key(dag_id), DeviceRequest(**demands), replicas)

    return call


@pytest.fixture
def supervised(settings, ledger, key, grant):
    """A gang whose supervisor runs a replica in a session of its own: (process, token)."""
    grant("flights")
    token = make_token(ledger.ledger_id, 1, 0, 1)
    arguments = json.dumps([settings.to_json(), key("flights").to_json(), token, REPLICA])
    process = subprocess.Popen([sys.executable, "-c", SUPERVISOR, arguments], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"up\n"
    wait_for(lambda: find_tree(token))
    yield process, token
    kill(process)
    process.stdout.close()
    assert kill_tree(token) == []


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def kill(process):
    process.kill()
    process.wait(timeout=10)


def dead_pid():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait(timeout=20)
    return process.pid


def locked_now(settings, uuid):
    return DeviceLock(settings.lock_dir, uuid).is_held()


def test_this_host_is_the_same_for_every_process_of_a_boot():
    program = "from airflow_tf.supervisor.acquire import this_host; print(this_host())"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert other.stdout.strip() == str(this_host())
    assert this_host().machine
    assert this_host().machine != this_host().host_id


def test_grants_then_refuses_naming_the_holder(grant):
    granted = grant("flights", [0, 1])
    assert isinstance(granted, Granted)
    assert [device.uuid for member in granted.members for device in member.devices] == ["cpu-0", "cpu-1"]
    refused = grant("other")
    assert isinstance(refused, Refused)
    assert "cpu-0 held by flights / run x / train[0] since" in str(refused)


def test_what_never_fits_fails_at_once(grant):
    with pytest.raises(DevicesNeverFitError, match="wants 8 devices of kind cpu"):
        grant("flights", range(8))
    with pytest.raises(DevicesNeverFitError, match="of kind gpu"):
        grant("flights", kind="gpu")


def test_a_device_of_another_installation_is_busy(grant, settings):
    stranger = DeviceLock(settings.lock_dir, "cpu-0")
    assert stranger.try_acquire()
    stranger.write_token("x" * 48)
    refused = grant("flights", [0, 1])
    assert f"cpu-0 busy: held by pid {os.getpid()}" in str(refused)
    granted = grant("flights", [0])
    assert granted.members[0].devices[0].uuid == "cpu-1"
    stranger.release()


def test_a_lock_folder_that_cannot_be_used_is_a_clear_error(ledger, settings, key, tmp_path):
    (tmp_path / "file").touch()
    broken = replace(settings, lock_dir=tmp_path / "file" / "locks")
    with pytest.raises(DeviceLockError, match="lock_dir"):
        acquire(ledger, broken, key("flights"), DeviceRequest(), [0])


def test_a_killed_supervisor_s_replica_is_swept_and_its_device_given_on(supervised, grant, ledger, key):
    process, token = supervised
    kill(process)
    assert find_tree(token)
    granted = grant("other", [0, 1])
    assert isinstance(granted, Granted)
    assert find_tree(token) == []
    outcome = ledger.replicas(key("flights"))[0].outcome
    assert outcome.state is AttemptState.LOST
    assert f"its supervisor (pid {process.pid}) died" in outcome.message


def test_the_retry_of_the_same_gang_gets_a_new_fence(supervised, grant, ledger, key):
    process, _ = supervised
    before = ledger.member(key("flights"), 0)
    kill(process)
    granted = grant("flights")
    assert granted.members[0].fence > before.fence


def test_a_new_supervisor_of_the_gang_is_not_taken_for_the_one_that_died(supervised, ledger, settings, key):
    process, token = supervised
    flights = key("flights")
    (member,) = usable_members(ledger, settings, flights, [0], is_supervised=True)
    assert member == ledger.member(flights, 0)
    kill(process)
    assert usable_members(ledger, settings, flights, [0], is_supervised=True) is None
    assert find_tree(token) == []


def test_what_an_earlier_boot_held_is_not_used(grant, ledger, settings, key, monkeypatch):
    (member,) = grant("flights").members
    ledger.confirm(member, os.getpid())
    later = replace(this_host(), boot_id="later")
    monkeypatch.setattr(module, "this_host", lambda: later)
    assert usable_members(ledger, settings, key("flights"), [0], is_supervised=True) is None


def test_what_is_reserved_is_usable_without_a_supervisor(grant, ledger, settings, key):
    granted = grant("flights", [0, 1])
    assert usable_members(ledger, settings, key("flights"), [0, 1], is_supervised=False) == granted.members
    ledger.confirm(granted.members[0], os.getpid())
    assert usable_members(ledger, settings, key("flights"), [0], is_supervised=False) is None


def test_a_living_supervisor_keeps_its_device(supervised, grant, settings, ledger):
    _, token = supervised
    refused = grant("other", [0, 1])
    assert isinstance(refused, Refused)
    assert find_tree(token)
    assert reclaim(ledger, settings, this_host()) == []


def test_a_dead_supervisor_s_device_stays_while_its_lock_is_held(grant, ledger, settings, caplog):
    (member,) = grant("flights").members
    ledger.confirm(member, dead_pid())
    lock = DeviceLock(settings.lock_dir, "cpu-0")
    assert lock.try_acquire()
    assert isinstance(grant("other", [0, 1]), Refused)
    lock.release()
    assert isinstance(grant("other", [0, 1]), Granted)


def test_a_dead_supervisor_s_device_stays_while_its_processes_will_not_die(grant, ledger, settings, key, monkeypatch):
    (member,) = grant("flights").members
    ledger.confirm(member, dead_pid())
    ledger.open_gang(key("flights"), 1, "/run")
    ledger.enter(key("flights"), 0, View("ti", 1, 1))
    ledger.start_attempt(key("flights"), 0, 1, member, "t" * 48)
    with monkeypatch.context() as patched:
        patched.setattr(module, "kill_tree", lambda token: [7] if token == "t" * 48 else [])
        assert isinstance(grant("other", [0, 1]), Refused)
    assert not locked_now(settings, "cpu-0")
    assert isinstance(grant("other", [0, 1]), Granted)


def test_a_pid_that_was_given_out_again_is_not_the_supervisor(grant, ledger, settings):
    (member,) = grant("flights").members
    ledger.confirm(member, os.getpid())
    (found,) = ledger.confirmed_on(this_host())
    assert not module._is_gone(found)
    assert module._is_gone(replace(found, confirmed_seconds=0.0))


def test_members_without_devices_are_taken_back_too(grant, ledger, key):
    (member,) = grant("ps", per_replica=0).members
    ledger.confirm(member, dead_pid())
    grant("other")
    assert ledger.member(key("ps"), 0) is None


def test_taking_locks_all_devices_and_sweeps_what_the_last_holder_left(grant, settings):
    token = make_token("earlier", 3, 0, 1)
    last = DeviceLock(settings.lock_dir, "cpu-1")
    assert last.try_acquire()
    last.write_token(token)
    environment = os.environ | {FENCE_VARIABLE: token}
    left = subprocess.Popen([sys.executable, "-c", REPLICA], env=environment, start_new_session=True)
    wait_for(lambda: find_tree(token) == [left.pid])
    last.release()
    (member,) = grant("flights", per_replica=2).members
    locks = take_devices(member, settings)
    assert left.wait(timeout=10) == -signal.SIGKILL
    assert [lock.uuid for lock in locks] == ["cpu-0", "cpu-1"]
    assert locked_now(settings, "cpu-0")
    assert locked_now(settings, "cpu-1")
    assert locks[1].left_behind() == ()
    for lock in locks:
        lock.release()


def test_taking_a_locked_device_keeps_no_lock_at_all(grant, settings):
    (member,) = grant("flights", per_replica=2).members
    stranger = DeviceLock(settings.lock_dir, "cpu-1")
    assert stranger.try_acquire()
    stranger.write_token("x")
    with pytest.raises(DevicesBusyError, match=f"cpu-1 is locked by pid {os.getpid()}"):
        take_devices(member, settings)
    assert not locked_now(settings, "cpu-0")
    stranger.release()


def test_taking_keeps_no_lock_when_something_will_not_die(grant, settings, monkeypatch):
    (member,) = grant("flights").members
    last = DeviceLock(settings.lock_dir, "cpu-0")
    assert last.try_acquire()
    last.write_token("x" * 48)
    last.release()
    monkeypatch.setattr(module, "kill_tree", lambda _: [7, 8])
    with pytest.raises(DevicesBusyError, match=r"processes \[7, 8\] .* survive SIGKILL"):
        take_devices(member, settings)
    assert not locked_now(settings, "cpu-0")
    assert [holder.token for holder in last.left_behind()] == ["x" * 48]


def test_what_another_user_left_is_not_known_to_be_gone(grant, settings, monkeypatch):
    (member,) = grant("flights").members
    boot_id = this_host().boot_id
    monkeypatch.setattr(DeviceLock, "left_behind", lambda _: (LastHolder("x" * 48, 5, 4242, boot_id),))
    monkeypatch.setattr(module, "_has_processes", lambda uid: uid == 4242)
    with pytest.raises(DevicesBusyError, match="last used by uid 4242"):
        take_devices(member, settings)
    monkeypatch.setattr(module, "_has_processes", lambda _: False)
    for lock in take_devices(member, settings):
        lock.release()
