"""Memory limits by cgroup v2, where this process may make cgroups; where not, it says why.

Delegation, as systemd and container runtimes mean it: a cgroup belongs to us if its files are writable, and to root
only if its manager marked it so (or there is no systemd). A cgroup that has processes of its own cannot give its
children a memory limit, so the children lie in it only if it has none, or if all of them are this process's own, which
are moved aside; else beside it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from airflow_tf.core.errors import DeclarationError

_TODO = (
    "Run Airflow's worker with delegation (systemd: Delegate=memory, or the option own_scope), or leave "
    "train.memory_limit out."
)
_OWN_LEAF = "airflow_tf-supervisor"
_DELEGATION_MARKS = ("user.delegate", "trusted.delegate")


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """The cgroup of one attempt of a replica, with a limit on its memory."""

    path: Path
    limit_bytes: int

    @classmethod
    def create(cls, parent: Path, name: str, limit_bytes: int) -> MemoryGroup:
        """Make the cgroup; swap is not given either, and the kernel ends all of it when it ends one.

        :raises DeclarationError: if the kernel refuses.
        """
        group = cls(parent / name, limit_bytes)
        try:
            group.path.mkdir(exist_ok=True)
            (group.path / "memory.max").write_text(str(limit_bytes))
            (group.path / "memory.oom.group").write_text("1")
            with contextlib.suppress(FileNotFoundError, PermissionError):  # a kernel without swap accounting
                (group.path / "memory.swap.max").write_text("0")
        except OSError as error:
            raise _refusal(f"{group.path}: {error.strerror}") from error
        return group

    def oom_kills(self) -> int:
        """Return how many of its processes the kernel has ended for want of memory."""
        return _events(self.path).get("oom_kill", 0)

    def kill(self) -> None:
        """End all of its processes at once."""
        with contextlib.suppress(OSError):  # removed, or a kernel before 5.14: the sweep ends them
            (self.path / "cgroup.kill").write_text("1")

    def remove(self) -> None:
        """Remove the empty cgroup; one with a process that cannot die stays."""
        with contextlib.suppress(OSError):  # it has one
            self.path.rmdir()


def parent_for_limits() -> Path:
    """Return a cgroup whose children may be given memory limits, changing what is ours to change.

    :raises DeclarationError: with the reason, if there is none.
    """
    own = own_cgroup()
    reasons = []
    for candidate in (own, own.parent):
        reason = _obstacle(candidate) or _enable(candidate)
        if not reason:
            return candidate
        reasons.append(f"{candidate}: {reason}")
    raise _refusal("; ".join(reasons))


def describe() -> str:
    """Say in one line whether a memory limit can be enforced by a process in this one's place; changes nothing."""
    try:
        own = own_cgroup()
    except DeclarationError as error:
        return f"cannot be enforced here, train.memory_limit would be refused: {error.why}"
    reasons = []
    for candidate in (own, own.parent):
        reason = _obstacle(candidate)
        if not reason and candidate == own and _foreign(candidate):
            reason = "it has processes of others"
        if not reason:
            return f"enforced by cgroups below {candidate}"
        reasons.append(f"{candidate}: {reason}")
    return f"cannot be enforced here, train.memory_limit would be refused: {'; '.join(reasons)}"


def own_cgroup(mounts: Path = Path("/proc/self/mountinfo"), membership: Path = Path("/proc/self/cgroup")) -> Path:
    """Return the folder of this process's cgroup.

    :raises DeclarationError: if there is no cgroup v2 hierarchy.
    """
    found = [line.split() for line in mounts.read_text().splitlines()]
    roots = [fields[4] for fields in found if fields[fields.index("-") + 1] == "cgroup2"]
    own = [line.removeprefix("0::/") for line in membership.read_text().splitlines() if line.startswith("0::/")]
    if not roots or not own:
        raise _refusal("this host has no cgroup v2 hierarchy")
    return Path(roots[0]) / own[0]


def own_oom_kills(own: Path) -> int:
    """Return how many processes of this cgroup the kernel has ended for want of memory."""
    return _events(own).get("oom_kill", 0)


def _obstacle(folder: Path) -> str:
    """Say why ``folder`` cannot be the parent of limited cgroups, as far as it can be seen."""
    controllers = _words(folder / "cgroup.controllers")
    if controllers is None:
        return "it is no cgroup of version 2"
    if "memory" not in controllers:
        return "the memory controller is not enabled for it"
    if not os.access(folder / "cgroup.procs", os.W_OK) or not os.access(folder / "cgroup.subtree_control", os.W_OK):
        return "it is not delegated to this user"
    if os.geteuid() == 0 and Path("/run/systemd/system").exists() and not _is_marked(folder):
        return "systemd has not delegated it"
    return ""


def _is_marked(folder: Path) -> bool:
    for name in _DELEGATION_MARKS:
        with contextlib.suppress(OSError):  # not set
            return os.getxattr(folder, name) == b"1"
    return False


def _enable(folder: Path) -> str:
    """Let the children of ``folder`` have memory limits; say what prevents it."""
    control = folder / "cgroup.subtree_control"
    if "memory" in (_words(control) or ()):
        return ""
    try:
        if not _foreign(folder):
            _move_aside(folder)
        control.write_text("+memory")
    except OSError as error:
        return f"the memory controller cannot be given to its children ({error.strerror})"
    return ""


def _foreign(folder: Path) -> list[int]:
    """Return the processes of a cgroup that are neither this one nor its descendants."""
    own = {os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))}
    return [pid for pid in _processes(folder) if pid not in own]


def _move_aside(folder: Path) -> None:
    pids = list(_processes(folder))
    if pids:
        leaf = folder / _OWN_LEAF
        leaf.mkdir(exist_ok=True)
        for pid in pids:
            (leaf / "cgroup.procs").write_text(str(pid))


def _processes(folder: Path) -> Iterator[int]:
    yield from (int(line) for line in (folder / "cgroup.procs").read_text().split())


def _words(path: Path) -> list[str] | None:
    try:
        return path.read_text().split()
    except OSError:
        return None


def _events(folder: Path) -> dict[str, int]:
    """Read ``memory.events``; empty where the memory controller is not enabled."""
    try:
        lines = (folder / "memory.events").read_text().splitlines()
    except OSError:
        return {}
    return {name: int(value) for name, value in (line.split() for line in lines)}


def _refusal(why: str) -> DeclarationError:
    return DeclarationError("train.memory_limit cannot be enforced on this host", why, _TODO)
