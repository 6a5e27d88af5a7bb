"""The kill matrix as data: what is done to a run, in which phase, and what must be true afterwards.

The tests are parametrised by these cells, and ``docs/kill_matrix.md`` holds the tables that ``python -m
tests.airflow.matrix.cells`` writes into it; a test compares the two.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "kill_matrix.md"

WAITING, STARTING, TRAINING, SAVING = PHASES = ("waiting", "starting", "training", "saving")
RUNNING = (STARTING, TRAINING, SAVING)
ANY = "any"

INSTANCES = ("reserve", "train[0]", "train[1]", "aggregate")
SUCCESS, FAILED, UPSTREAM_FAILED = "success", "failed", "upstream_failed"
SEVERAL, SOME = -2, -1
"""Numbers of tries that depend on timing: two or more, one or more."""


class Fate(StrEnum):
    """What becomes of the process of a replica; the values are the words of the table."""

    NONE = "none"
    GOES_ON = "goes on"
    ANEW = "ended, started anew from its last complete checkpoint"
    ENDED = "ended"


class Level(StrEnum):
    """How much of the system a cell needs."""

    AIRFLOW = "Airflow"  # a run of its own in the long-lived Airflow
    SHARED = "Airflow, shared"  # one event hits four runs in four phases
    GANG = "supervisor"  # supervisor, replicas, ledger and views without Airflow


@dataclass(frozen=True)
class Cell:
    """One pair of event and phase.

    :param states: end states that are not ``success``.
    :param tries: numbers of tries at the end that are not one.
    :param fates: of the processes of replicas 0 and 1.
    :param result: how the view of the replica ends, for a cell without Airflow.
    :param held: devices that the run holds once the event has had its effect, before anything else is let go on.
    :param devices: the same in words.
    :param next_try: what the next try, or the next run, does.
    """

    event: str
    phase: str
    level: Level = Level.AIRFLOW
    states: Mapping[str, str] = field(default_factory=dict)
    tries: Mapping[str, int] = field(default_factory=dict)
    fates: tuple[Fate, Fate] = (Fate.GOES_ON, Fate.GOES_ON)
    result: str = ""
    held: int = 2
    devices: str = ""
    next_try: str = ""

    @property
    def id(self) -> str:
        """Name in the table, and in brackets behind the test's name."""
        return f"{self.event}-{self.phase}"

    @property
    def run_state(self) -> str:
        return FAILED if self.states else SUCCESS


@dataclass(frozen=True)
class Event:
    """What happens, in words, and the phases that are no cell of their own, with the reason."""

    name: str
    text: str
    others: str = ""


def _cells(event: str, phases: tuple[str, ...], **facts: object) -> Iterator[Cell]:
    for phase in phases:
        yield Cell(event, phase, **facts)


NOBODY = (Fate.NONE, Fate.NONE)
NO_DEVICE: dict[str, object] = {"fates": NOBODY, "held": 0, "devices": "none held while waiting"}
KEPT = "kept by our supervisor"
NO_REPLICA = "waiting: there is no such process yet."
STOPPED_ALONE: dict[str, object] = {
    "fates": (Fate.ENDED, Fate.GOES_ON),
    "held": 1,
    "devices": "replica 0: given back when its tree is gone; replica 1: kept",
}

GANG_OTHERS = (
    "Waiting: as of independent replicas, there is no process yet. A phase that is not listed: the gang has one "
    "verdict, whatever its programs do when it is reached."
)
DEFERRED_OTHERS = (
    "Starting, saving: as training, for a trigger does not ask what the program does. Waiting, where it is not listed: "
    "there is no such process yet, or the sensor is an ordinary task again as soon as it looks."
)
ENDED_TOGETHER: dict[str, object] = {
    "states": {"train[0]": FAILED, "train[1]": FAILED, "aggregate": UPSTREAM_FAILED},
    "tries": {"aggregate": 0},
    "fates": (Fate.ENDED, Fate.ENDED),
    "held": 0,
    "devices": "all given back when the gang is gone",
    "next_try": "none: a gang is ended as a whole",
}

EVENTS = (
    Event("kill-task", "SIGKILL of a task process (the sensor's while waiting, else replica 0's)"),
    Event("kill-airflow-supervisor", "SIGKILL of Airflow's supervisor of that task (a LocalExecutor worker)"),
    Event(
        "kill-scheduler",
        "SIGKILL of the scheduler, started again at once; the old tries still run when the new scheduler resets them",
    ),
    Event("stop-api-server", "api-server stopped for 60 s"),
    Event("kill-supervisor", "SIGKILL of our supervisor", NO_REPLICA),
    Event(
        "kill-zygote",
        "SIGKILL of the zygote (with a real TensorFlow)",
        NO_REPLICA + " Saving: the kernel ends the forked replicas as it does while training; what an interrupted "
        "save leaves behind is the cell kill-replica-saving.",
    ),
    Event("kill-replica", "SIGKILL of one replica (restarts: 1)", NO_REPLICA),
    Event(
        "stubborn-replica",
        "replica ignores SIGTERM, as does its grandchild in a session of its own; then marked failed",
        "Waiting: no replica. The other phases: the program's answer to SIGTERM is the same in each.",
    ),
    Event(
        "daemon",
        "replica leaves a daemon behind (forked twice, own session)",
        "Waiting: no replica. The other phases: the sweep comes after the replica's end, whenever the daemon began.",
    ),
    Event("lock-ledger", "ledger locked for 30 s (SQLite write lock held by another process)"),
    Event("mark-failed", "user marks the task failed (the sensor while waiting, else train[0])"),
    Event("mark-success", "user marks the task success"),
    Event("clear", "user clears the task"),
    Event(
        "partition",
        "heartbeats do not arrive for 45 s (Airflow's supervisor of train[0] is stopped, then continued)",
        "Airflow sees no difference between the phases; waiting is kill-airflow-supervisor-waiting.",
    ),
    Event("stop-supervisor", "our supervisor is SIGSTOPped for 15 s, then continued", NO_REPLICA),
    Event(
        "stop-supervisor-mark-failed",
        "our supervisor is SIGSTOPped, train[0] marked failed, the supervisor continued after 15 s",
        "One phase: what is asked of a stopped process waits in its socket, whatever its replicas do.",
    ),
    Event(
        "tasks-test",
        "`airflow tasks test` of the same task beside a live run",
        "One phase: the command's temporary run shares neither gang nor folder with it.",
    ),
    Event(
        "disk-full",
        "disk of the run folder and of the ledger full (no file may grow; the kernel says EFBIG in place of ENOSPC)",
        "Waiting: a waiting task writes to the ledger alone, see lock-ledger-waiting.",
    ),
    Event(
        "clock-back",
        "wall clock steps back an hour, and older checkpoints get times of the future",
        "One phase: nothing decides by wall time in any; the longest one shows it.",
    ),
    Event(
        "suspend",
        "virtual machine suspended for an hour: CLOCK_BOOTTIME jumps past the life of a reservation",
        "Waiting means here: reserved, but not yet taken. Starting, saving: as training, the device is confirmed.",
    ),
    Event(
        "reboot",
        "whole process tree gone as by a reboot: stale lock and socket, rows and lock files of an earlier boot",
    ),
    Event(
        "two-homes",
        "two AIRFLOW_HOMEs with a ledger each on one host, both with the same two slots",
        "Waiting means here: reserved in both ledgers, but not yet taken. Starting, saving: as training, the device is "
        "locked from the start of a replica to its end.",
    ),
    Event(
        "vanish-device",
        "a GPU vanishes from the host (simulated NVML)",
        "Starting, saving: as training; the watch over the device does not ask what the program does.",
    ),
    Event(
        "triggerer-down",
        "triggerer down while a user marks a deferred task failed: nobody gives a sign for it any more (orphan grace "
        "3 s in place of 600 s)",
        "Starting, saving: as training. Marks, clears and a triggerer that is killed while deferred tasks go on: "
        "`tests/airflow/test_deferrable.py`.",
    ),
    Event("stop-replica", "SIGSTOP of one replica (progress_timeout 3 s)", NO_REPLICA),
    Event(
        "gang-kill-task",
        "SIGKILL of the task process of replica 0 of a gang (strategy `sync`, as in all rows that begin with gang)",
        "The other phases: as of independent replicas, the gang is not asked.",
    ),
    Event("gang-kill-supervisor", "SIGKILL of our supervisor of a gang", GANG_OTHERS),
    Event("gang-kill-replica", "SIGKILL of one member of a gang (restarts: 1)", GANG_OTHERS),
    Event("gang-mark-failed", "user marks the task of one member of a gang failed", GANG_OTHERS),
    Event("gang-clear", "user clears the task of one member of a gang", GANG_OTHERS),
    Event("gang-stop-replica", "SIGSTOP of one member of a gang (no progress_timeout) for 15 s", GANG_OTHERS),
    Event(
        "gang-stop-replica-mark-failed",
        "SIGSTOP of one member of a gang, then its task is marked failed",
        "One phase: a stopped process answers SIGTERM in none.",
    ),
    Event("gang-vanish-device", "the GPU of one member of a gang vanishes (simulated NVML)", GANG_OTHERS),
    Event(
        "deferred-mark-failed",
        "user marks a deferred task failed (the sensor while waiting, else train[0]; sensor and training are deferrable "
        "in all rows that begin with deferred)",
        DEFERRED_OTHERS,
    ),
    Event("deferred-clear", "user clears a deferred task", DEFERRED_OTHERS),
    Event("deferred-kill-replica", "SIGKILL of one replica whose task is deferred (restarts: 1)", DEFERRED_OTHERS),
    Event("deferred-kill-supervisor", "SIGKILL of our supervisor while both tasks are deferred", DEFERRED_OTHERS),
    Event("deferred-stop-api-server", "api-server stopped for 60 s while both tasks are deferred", DEFERRED_OTHERS),
    Event("deferred-kill-triggerer", "SIGKILL of the triggerer, started again at once", DEFERRED_OTHERS),
    Event(
        "deferred-kill-trigger-process",
        "SIGKILL of the process in which the triggerer runs triggers; it ends itself then and is started again",
        DEFERRED_OTHERS,
    ),
    Event(
        "full-of-waiters",
        "every slot of a pool taken by runs that wait for devices (mode reschedule), then a run that gets some",
        "The phase is waiting by definition.",
    ),
)

RETRIED = "attaches to the running replica"
RESTART = "starts a new supervisor, which resumes from the last complete checkpoint"

CELLS: tuple[Cell, ...] = (
    Cell("kill-task", WAITING, tries={"reserve": 2}, **NO_DEVICE, next_try="waits again"),
    *_cells("kill-task", RUNNING, tries={"train[0]": 2}, devices=KEPT, next_try=RETRIED),
    Cell(
        "kill-airflow-supervisor",
        WAITING,
        tries={"reserve": 2},
        **NO_DEVICE,
        next_try="waits again, after the heartbeat timeout",
    ),
    *_cells(
        "kill-airflow-supervisor",
        RUNNING,
        tries={"train[0]": 2},
        devices=KEPT,
        next_try=f"after the heartbeat timeout, {RETRIED}; the old task process finds itself superseded",
    ),
    Cell(
        "kill-scheduler",
        WAITING,
        Level.SHARED,
        tries={"reserve": SEVERAL},
        **NO_DEVICE,
        next_try="waits again",
    ),
    *_cells(
        "kill-scheduler",
        RUNNING,
        level=Level.SHARED,
        tries={"train[0]": SEVERAL, "train[1]": SEVERAL},
        devices=KEPT,
        next_try=f"{RETRIED}; Airflow ends the old one, which only lets go",
    ),
    Cell(
        "stop-api-server",
        WAITING,
        Level.SHARED,
        tries={"reserve": SEVERAL},
        **NO_DEVICE,
        next_try="waits again",
    ),
    *_cells(
        "stop-api-server",
        RUNNING,
        level=Level.SHARED,
        tries={"train[0]": SEVERAL, "train[1]": SEVERAL},
        devices=KEPT,
        next_try=f"{RETRIED}; a try that starts while the API is away fails at once, so retries must outlast it",
    ),
    *_cells(
        "kill-supervisor",
        RUNNING,
        tries={"train[0]": 2, "train[1]": 2},
        fates=(Fate.ANEW, Fate.ANEW),
        devices="replicas die with it; taken back under lock and sweep, reserved anew",
        next_try=RESTART,
    ),
    *_cells(
        "kill-zygote",
        (STARTING, TRAINING),
        fates=(Fate.ANEW, Fate.ANEW),
        devices=KEPT,
        next_try="none: the supervisor starts a new zygote and counts one restart",
    ),
    *_cells(
        "kill-replica",
        RUNNING,
        fates=(Fate.ANEW, Fate.GOES_ON),
        devices=KEPT,
        next_try="none: the supervisor restarts it within its budget",
    ),
    Cell(
        "stubborn-replica",
        TRAINING,
        states={"train[0]": FAILED, "aggregate": UPSTREAM_FAILED},
        tries={"aggregate": 0},
        **STOPPED_ALONE,
        next_try="none; the grandchild is gone as well",
    ),
    Cell("daemon", TRAINING, devices="given back when the daemon is gone", next_try="none"),
    Cell("lock-ledger", WAITING, Level.SHARED, **NO_DEVICE, next_try="none: a look without an answer is no failure"),
    *_cells(
        "lock-ledger",
        RUNNING,
        level=Level.SHARED,
        devices=KEPT,
        next_try="none: training goes on, its end is recorded when the ledger answers",
    ),
    Cell(
        "mark-failed",
        WAITING,
        states={
            "reserve": FAILED,
            "train[0]": UPSTREAM_FAILED,
            "train[1]": UPSTREAM_FAILED,
            "aggregate": UPSTREAM_FAILED,
        },
        tries={"train[0]": 0, "train[1]": 0, "aggregate": 0},
        **NO_DEVICE,
        next_try="none",
    ),
    *_cells(
        "mark-failed",
        RUNNING,
        states={"train[0]": FAILED, "aggregate": UPSTREAM_FAILED},
        tries={"aggregate": 0},
        **STOPPED_ALONE,
        next_try="none; a save that was under way is finished within the grace",
    ),
    Cell(
        "mark-success",
        WAITING,
        tries={"train[0]": SOME, "train[1]": SOME},
        **NO_DEVICE,
        next_try="train reserves for itself and waits by rescheduling",
    ),
    *_cells(
        "mark-success",
        RUNNING,
        **STOPPED_ALONE,
        next_try="none; aggregation takes what replica 0 has saved, and leaves it out where that is nothing",
    ),
    Cell("clear", WAITING, tries={"reserve": 2}, **NO_DEVICE, next_try="waits again"),
    *_cells(
        "clear",
        RUNNING,
        tries={"train[0]": 2},
        fates=(Fate.ENDED, Fate.GOES_ON),
        devices="replica 0: given back when its tree is gone, reserved anew by the new try; replica 1: kept",
        next_try="a new generation of replica 0, from the start",
    ),
    Cell("partition", TRAINING, tries={"train[0]": 2}, devices=KEPT, next_try=f"{RETRIED}; the old one only lets go"),
    *_cells("stop-supervisor", RUNNING, devices=KEPT, next_try="none: views and replicas wait"),
    Cell(
        "stop-supervisor-mark-failed",
        TRAINING,
        states={"train[0]": FAILED, "aggregate": UPSTREAM_FAILED},
        tries={"aggregate": 0},
        **STOPPED_ALONE,
        next_try="none",
    ),
    Cell("tasks-test", TRAINING, devices="the run's own: kept; the command's: one more, given back", next_try="none"),
    *_cells(
        "disk-full",
        RUNNING,
        level=Level.GANG,
        result="supervisor lost (retry), naming the disk; then success",
        fates=(Fate.ENDED, Fate.NONE),
        devices="given back as soon as the ledger can be written",
        next_try="resumes from the last complete checkpoint",
    ),
    Cell(
        "clock-back",
        TRAINING,
        Level.GANG,
        result="success",
        fates=(Fate.GOES_ON, Fate.NONE),
        devices="kept; a reservation of another gang neither expires nor lives longer",
        next_try="after a kill, resumes from the checkpoint with the highest step, not with the latest time",
    ),
    Cell(
        "suspend",
        WAITING,
        Level.GANG,
        result="success",
        fates=NOBODY,
        devices="expired; another gang may reserve them",
        next_try="reserves anew",
    ),
    Cell(
        "suspend",
        TRAINING,
        Level.GANG,
        result="success",
        fates=(Fate.GOES_ON, Fate.NONE),
        devices="kept: what is confirmed does not expire",
        next_try="none",
    ),
    Cell(
        "reboot",
        WAITING,
        Level.GANG,
        result="success",
        fates=NOBODY,
        devices="free for the first who asks after the boot",
        next_try="reserves anew",
    ),
    *_cells(
        "reboot",
        RUNNING,
        level=Level.GANG,
        result="supervisor lost (retry); then success",
        fates=(Fate.ANEW, Fate.NONE),
        devices="free for the first who asks after the boot",
        next_try=RESTART,
    ),
    Cell(
        "two-homes",
        WAITING,
        Level.GANG,
        result="refused; then success",
        fates=NOBODY,
        devices="the one that the other has locked is offered to nobody for a minute, then while it is locked",
        next_try="none: the same try takes the other slot",
    ),
    Cell(
        "two-homes",
        TRAINING,
        Level.GANG,
        result="success",
        fates=(Fate.GOES_ON, Fate.NONE),
        devices="kept; the other installation is refused and told the holder's pid, then gets both",
        next_try="none",
    ),
    Cell(
        "vanish-device",
        WAITING,
        Level.GANG,
        result="refused while the other one is held; then success",
        fates=NOBODY,
        devices="the one that is left, as soon as it is free",
        next_try="reserves what is left",
    ),
    Cell(
        "vanish-device",
        TRAINING,
        Level.GANG,
        result="failed, device_lost (retry); then success",
        fates=(Fate.ENDED, Fate.NONE),
        devices="the lost one is offered to nobody",
        next_try="takes the other GPU and resumes from the last complete checkpoint",
    ),
    Cell(
        "triggerer-down",
        WAITING,
        Level.GANG,
        result="forgotten after three missed looks",
        fates=NOBODY,
        devices="free for those behind it in the queue",
        next_try="none; after a clear it waits again",
    ),
    Cell(
        "triggerer-down",
        TRAINING,
        Level.GANG,
        result="left to the triggerer; then stopped",
        fates=(Fate.ENDED, Fate.NONE),
        devices="given back when the orphan grace is over",
        next_try="none",
    ),
    *_cells(
        "stop-replica",
        RUNNING,
        level=Level.GANG,
        result="success",
        fates=(Fate.ANEW, Fate.NONE),
        devices=KEPT,
        next_try="none: stacks are logged, it is killed, the supervisor restarts it within its budget",
    ),
    Cell("gang-kill-task", TRAINING, tries={"train[0]": 2}, devices=KEPT, next_try=RETRIED),
    *_cells(
        "gang-kill-supervisor",
        (STARTING, TRAINING),
        tries={"train[0]": 2, "train[1]": 2},
        fates=(Fate.ANEW, Fate.ANEW),
        devices="the members die with it; taken back under lock and sweep, reserved anew",
        next_try=RESTART,
    ),
    *_cells(
        "gang-kill-replica",
        (STARTING, TRAINING),
        fates=(Fate.ANEW, Fate.ANEW),
        devices=KEPT,
        next_try="none: the supervisor ends the others and restarts the gang within its budget",
    ),
    Cell("gang-mark-failed", TRAINING, **ENDED_TOGETHER),
    *_cells(
        "gang-clear",
        (STARTING, TRAINING),
        tries={"train[0]": 2},
        fates=(Fate.ENDED, Fate.ENDED),
        devices="given back when the gang is gone, reserved anew by the new try",
        next_try="a new generation of the gang, from the start; the view of replica 1 goes on with it",
    ),
    Cell("gang-stop-replica", TRAINING, devices=KEPT, next_try="none: nobody ends it without a progress_timeout"),
    Cell("gang-stop-replica-mark-failed", TRAINING, **ENDED_TOGETHER),
    Cell(
        "gang-vanish-device",
        TRAINING,
        Level.GANG,
        result="failed, device_lost (retry), the other member its victim; then success",
        fates=(Fate.ENDED, Fate.ENDED),
        devices="the lost one is offered to nobody, the other one is given back",
        next_try="takes the GPUs that are left and resumes from the last complete checkpoint",
    ),
    Cell(
        "deferred-mark-failed",
        WAITING,
        states={
            "reserve": FAILED,
            "train[0]": UPSTREAM_FAILED,
            "train[1]": UPSTREAM_FAILED,
            "aggregate": UPSTREAM_FAILED,
        },
        tries={"train[0]": 0, "train[1]": 0, "aggregate": 0},
        **NO_DEVICE,
        next_try="none",
    ),
    Cell(
        "deferred-mark-failed",
        TRAINING,
        states={"train[0]": FAILED, "aggregate": UPSTREAM_FAILED},
        tries={"aggregate": 0},
        **STOPPED_ALONE,
        next_try="none; the trigger asks the supervisor for the stop",
    ),
    Cell(
        "deferred-clear",
        TRAINING,
        tries={"train[0]": 2},
        fates=(Fate.ENDED, Fate.GOES_ON),
        devices="replica 0: given back when its tree is gone, reserved anew by the new try; replica 1: kept",
        next_try="a new generation of replica 0, from the start",
    ),
    Cell(
        "deferred-kill-replica",
        TRAINING,
        fates=(Fate.ANEW, Fate.GOES_ON),
        devices=KEPT,
        next_try="none: the supervisor restarts it within its budget",
    ),
    Cell(
        "deferred-kill-supervisor",
        TRAINING,
        tries={"train[0]": 2, "train[1]": 2},
        fates=(Fate.ANEW, Fate.ANEW),
        devices="replicas die with it; taken back under lock and sweep, reserved anew",
        next_try=RESTART,
    ),
    Cell(
        "deferred-stop-api-server",
        TRAINING,
        Level.SHARED,
        devices=KEPT,
        next_try="none: triggers do not need it",
    ),
    *(
        cell
        for event in ("deferred-kill-triggerer", "deferred-kill-trigger-process")
        for cell in (
            Cell(event, WAITING, Level.SHARED, **NO_DEVICE, next_try="none: the new triggerer goes on waiting"),
            Cell(event, TRAINING, Level.SHARED, devices=KEPT, next_try="none: the new triggerer goes on watching"),
        )
    ),
    Cell(
        "full-of-waiters",
        WAITING,
        tries={"reserve": SOME, "train[0]": SOME, "train[1]": SOME},
        **NO_DEVICE,
        next_try="the run in the middle ends while the others wait; then these get theirs",
    ),
)


def of_event(event: str) -> list[Cell]:
    """Return the cells of an event, in the table's order."""
    return [cell for cell in CELLS if cell.event == event]


def of_level(*levels: Level) -> list[Cell]:
    """Return the cells of these levels, in the table's order."""
    return [cell for cell in CELLS if cell.level in levels]


# --- the table ---------------------------------------------------------------------------------------------------


def _instance(cell: Cell, name: str) -> str:
    tries = cell.tries.get(name, 1)
    count = (
        {SEVERAL: "try 2 or later", SOME: "any try", 1: ""}.get(tries, f"try {tries}") if _has_run(cell, name) else ""
    )
    return f"{name} {cell.states.get(name, SUCCESS)}" + (f" ({count})" if count else "")


def _has_run(cell: Cell, name: str) -> bool:
    return cell.states.get(name) != UPSTREAM_FAILED


def _replicas(cell: Cell) -> str:
    first, second = cell.fates
    return str(first) if first is second else f"0: {first}; 1: {second}"


def table(event: Event) -> str:
    """Return the section of one event."""
    lines = [f"### {event.name}", "", f"{event.text[0].upper()}{event.text[1:]}.", ""]
    lines += [
        "| Cell | Level | Task instances, or the view, at the end | Replicas | Devices | Next try |",
        "|---|---|---|---|---|---|",
    ]
    for cell in CELLS:
        if cell.event == event.name:
            instances = cell.result or ", ".join(_instance(cell, name) for name in INSTANCES)
            columns = (f"`{cell.id}`", cell.level, instances, _replicas(cell), cell.devices, cell.next_try)
            lines.append(f"| {' | '.join(columns)} |")
    if event.others:
        lines += ["", f"Not run: {event.others}"]
    return "\n".join(lines) + "\n"


def tables() -> str:
    """Return all sections."""
    return "\n".join(table(event) for event in EVENTS)


_BEGIN, _END = "<!-- cells -->\n", "<!-- end of cells -->"


def document_tables() -> str:
    """Return what the document holds where the tables belong."""
    found = re.search(f"{_BEGIN}(.*){_END}", DOCUMENT.read_text(), re.DOTALL)
    assert found is not None, f"{DOCUMENT} has no place for the tables"
    return found.group(1)


def main() -> None:
    text = DOCUMENT.read_text()
    DOCUMENT.write_text(text.replace(f"{_BEGIN}{document_tables()}{_END}", f"{_BEGIN}{tables()}{_END}"))


if __name__ == "__main__":
    main()
