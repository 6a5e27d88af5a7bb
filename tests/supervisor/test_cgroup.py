"""Memory limits by cgroups, against a folder that looks like the kernel's; and who would end a supervisor."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from airflow_tf.core.errors import DeclarationError
from airflow_tf.supervisor import cgroup, scope, witness
from airflow_tf.supervisor.cgroup import MemoryGroup


def make(folder: Path, *, controllers: str = "cpu memory", enabled: str = "", pids: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cgroup.controllers").write_text(controllers)
    (folder / "cgroup.subtree_control").write_text(enabled)
    (folder / "cgroup.procs").write_text(pids)
    return folder


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """This process's cgroup, ``worker`` in a delegated ``service``."""
    service = make(tmp_path / "service", enabled="memory")
    own = make(service / "worker", pids=f"{os.getpid()}\n")
    monkeypatch.setattr(cgroup, "own_cgroup", lambda: own)
    return own


def test_a_limit_is_set_counted_and_ended(tmp_path: Path) -> None:
    group = MemoryGroup.create(tmp_path, "token", 2**30)
    assert (group.path / "memory.max").read_text() == str(2**30)
    assert (group.path / "memory.oom.group").read_text() == "1"
    assert group.oom_kills() == 0
    (group.path / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\noom_group_kill 1\n")
    assert group.oom_kills() == 1
    group.kill()
    assert (group.path / "cgroup.kill").read_text() == "1"
    assert (
        witness.OomWitness().testify(os.getpid(), group, was_killed=False)
        == "it needed more than its memory limit of 1.0 GiB"
    )


def test_a_cgroup_that_the_kernel_refuses_is_said(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a file where a folder must be")
    with pytest.raises(DeclarationError, match=r"train\.memory_limit cannot be enforced"):
        MemoryGroup.create(tmp_path, "token", 2**30)


def test_limits_go_beside_a_cgroup_that_has_processes_of_others(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own / "cgroup.procs").write_text("1\n")
    write = Path.write_text

    def refuse(path: Path, text: str) -> int:
        if path == own / "cgroup.subtree_control":
            raise OSError(16, "Device or resource busy")  # as the kernel does
        return write(path, text)

    monkeypatch.setattr(Path, "write_text", refuse)
    assert cgroup.parent_for_limits() == own.parent
    assert cgroup.describe() == f"enforced by cgroups below {own.parent}"


def test_processes_of_our_own_are_moved_aside(own: Path) -> None:
    assert cgroup.parent_for_limits() == own
    assert (own / "airflow_tf-supervisor" / "cgroup.procs").read_text() == str(os.getpid())
    assert (own / "cgroup.subtree_control").read_text() == "+memory"


def test_without_a_memory_controller_the_reason_is_said(own: Path) -> None:
    for folder in (own, own.parent):
        make(folder, controllers="cpu")
    with pytest.raises(DeclarationError, match=f"{own.parent}: the memory controller is not enabled for it"):
        cgroup.parent_for_limits()
    assert "cannot be enforced here" in cgroup.describe()


def test_a_host_without_cgroups_of_version_2_is_said(tmp_path: Path) -> None:
    mounts, membership = tmp_path / "mountinfo", tmp_path / "cgroup"
    mounts.write_text("36 32 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n")
    membership.write_text("4:memory:/\n")
    with pytest.raises(DeclarationError, match="no cgroup v2 hierarchy"):
        cgroup.own_cgroup(mounts, membership)
    mounts.write_text("35 24 0:30 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw\n")
    membership.write_text("0::/system.slice/airflow.service\n")
    assert cgroup.own_cgroup(mounts, membership) == Path("/sys/fs/cgroup/system.slice/airflow.service")


@pytest.mark.parametrize(
    ("membership", "service"),
    [
        ("0::/system.slice/airflow-worker.service\n", "airflow-worker.service"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/w.service\n", "w.service"),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/run-5.scope\n", ""),
        ("0::/user.slice/user-1000.slice/session-3.scope\n", ""),
        ("9:name=systemd:/system.slice/airflow.service\n0::/\n", "airflow.service"),
        ("0::/\n", ""),
    ],
)
def test_the_service_that_would_end_a_supervisor_is_known(tmp_path: Path, membership: str, service: str) -> None:
    (tmp_path / "cgroup").write_text(membership)
    assert scope.service_of(tmp_path / "cgroup") == service


def test_a_supervisor_gets_a_scope_where_one_is_to_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("0::/system.slice/airflow.service\n")
    program = tmp_path / "systemd-run"
    program.write_text('#!/bin/sh\n[ "$2" = --scope ] || [ "$1" = --scope ] || exit 9\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    command = scope.in_scope("auto", ["python", "-m", "x"], membership)
    assert command[0] == str(program)
    assert command[-4:] == ["--", "python", "-m", "x"]
    assert "outlives" in scope.describe("auto", membership)
    assert scope.in_scope("off", ["python"], membership) == ["python"]
    program.write_text("#!/bin/sh\necho no bus >&2; exit 1\n")
    assert scope.in_scope("auto", ["python"], membership) == ["python"]
    with pytest.raises(DeclarationError, match=r"a restart of airflow\.service ends training.*no bus"):
        scope.describe("auto", membership)


def test_outside_a_service_nothing_is_needed(tmp_path: Path) -> None:
    membership = tmp_path / "cgroup"
    membership.write_text("0::/\n")
    assert scope.in_scope("auto", ["python"], membership) == ["python"]
    assert "in no systemd service" in scope.describe("auto", membership)


def test_a_death_beside_a_new_oom_kill_of_the_host_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kills = [3]
    monkeypatch.setattr(witness, "_host_kills", lambda: kills[0])
    monkeypatch.setattr(witness, "KERNEL_LOG", tmp_path / "kmsg")
    seen = witness.OomWitness()
    assert seen.testify(17, None, was_killed=True) == ""
    kills[0] += 1
    seen.sample()  # a sample may fall between the kill and its notice
    assert "the host ran out of memory" in seen.testify(17, None, was_killed=True)
    seen.sample()
    assert seen.testify(17, None, was_killed=True) == ""
    record = "3,1,{},-;Out of memory: Killed process 17 (python) total-vm:9kB, anon-rss:1kB\n"
    (tmp_path / "kmsg").write_text(record.format(int((time.monotonic() - 3600) * 1e6)))
    assert seen.testify(17, None, was_killed=True) == ""  # another process, an hour ago
    (tmp_path / "kmsg").write_text(record.format(int(time.monotonic() * 1e6)))
    assert seen.testify(17, None, was_killed=False) == ""
    assert "names its pid" in seen.testify(17, None, was_killed=True)
    assert seen.testify(1, None, was_killed=True) == ""
