"""What happens in each cell that needs Airflow, and how its end is compared with the table."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait

import psutil

from airflow_tf.core.checkpoint import latest_complete, verify
from tests.airflow.matrix.cells import (
    CELLS,
    INSTANCES,
    SAVING,
    SEVERAL,
    SOME,
    TRAINING,
    WAITING,
    Cell,
    Fate,
)
from tests.airflow.matrix.failing import explained
from tests.airflow.matrix.live import AFTERMATH_SECONDS, LiveRun
from tests.airflow.running import RunningAirflow
from tests.supervisor.harness import is_alive

API_OUTAGE_SECONDS = 60
LEDGER_OUTAGE_SECONDS = 30
STOP_SECONDS = 15
UNDER_WAY = {"running", "deferred", "up_for_reschedule", "success"}
TEMPORARY_RUN = "__airflow_temporary_run_"
Act = Callable[[LiveRun, Cell], None]


# --- what is done ------------------------------------------------------------------------------------------------


def instance_of(cell: Cell) -> str:
    """The task instance that is hit: the sensor while waiting, else replica 0's."""
    return "reserve" if cell.phase == WAITING else "train[0]"


def is_deferred(cell: Cell) -> bool:
    return cell.event.startswith("deferred-")


def victim_of(run: LiveRun, cell: Cell) -> int:
    """Pid of the task process that Airflow is to end; a deferred task has none."""
    return 0 if is_deferred(cell) else run.task_pid(instance_of(cell))


def airflow_supervisor_of(run: LiveRun, name: str) -> int:
    """Pid of the LocalExecutor worker that supervises a task."""
    parent = psutil.Process(run.task_pid(name)).parent()
    assert parent is not None
    assert "LocalExecutor" in " ".join(parent.cmdline()), parent
    return parent.pid


def kill_task(run: LiveRun, cell: Cell) -> None:
    os.kill(run.task_pid(instance_of(cell)), signal.SIGKILL)


def kill_airflow_supervisor(run: LiveRun, cell: Cell) -> None:
    os.kill(airflow_supervisor_of(run, instance_of(cell)), signal.SIGKILL)


def kill_supervisor(run: LiveRun, cell: Cell) -> None:
    os.kill(run.supervisor(), signal.SIGKILL)


def kill_zygote(run: LiveRun, cell: Cell) -> None:
    os.kill(run.zygote(), signal.SIGKILL)


def kill_replica(run: LiveRun, cell: Cell) -> None:
    os.kill(run.pids[0], signal.SIGKILL)


def see_daemon(run: LiveRun, cell: Cell) -> None:
    """The program has left it behind already."""
    assert sum("setsid" in line for line in run.processes()) == 2, run.processes()  # one of each replica


def mark(state: str) -> Act:
    def act(run: LiveRun, cell: Cell) -> None:
        task_id, map_index = ("reserve", -1) if cell.phase == WAITING else ("train", 0)
        run.victim = victim_of(run, cell)
        run.airflow.mark(run.dag_id, run.run_id, task_id, state, map_index)
        if cell.phase == WAITING and state == "success":
            run.wait(lambda: run.instances()["train[0]"]["state"] == "up_for_reschedule", "train that waits by itself")

    return act


def clear(run: LiveRun, cell: Cell) -> None:
    task_id, map_index = ("reserve", -1) if cell.phase == WAITING else ("train", 0)
    run.victim = victim_of(run, cell)
    run.airflow.clear(run.dag_id, run.run_id, task_id, map_index)


def partition(run: LiveRun, cell: Cell) -> None:
    """Stop Airflow's supervisor until the scheduler has started another try, then let it go on."""
    old, worker = run.task_pid("train[0]"), airflow_supervisor_of(run, "train[0]")
    os.kill(worker, signal.SIGSTOP)
    try:
        run.wait(lambda: "attached to the supervisor" in run.log("train", 2, 0), "the next try")
    finally:
        os.kill(worker, signal.SIGCONT)
    run.wait(lambda: not is_alive(old), "the end of the old try's task process")


def stop_supervisor(run: LiveRun, cell: Cell) -> None:
    supervisor = run.supervisor()
    os.kill(supervisor, signal.SIGSTOP)
    time.sleep(STOP_SECONDS)
    os.kill(supervisor, signal.SIGCONT)


def stop_supervisor_and_mark_failed(run: LiveRun, cell: Cell) -> None:
    supervisor, task = run.supervisor(), run.task_pid("train[0]")
    os.kill(supervisor, signal.SIGSTOP)
    run.airflow.mark(run.dag_id, run.run_id, "train", "failed", 0)
    run.wait(lambda: not is_alive(task), "the end of the marked task's process")
    time.sleep(STOP_SECONDS)
    assert all(is_alive(pid) for pid in run.pids.values())
    os.kill(supervisor, signal.SIGCONT)


def stop_replica(run: LiveRun, cell: Cell) -> None:
    """Stop a process that nobody watches for progress, then let it go on."""
    os.kill(run.pids[0], signal.SIGSTOP)
    time.sleep(STOP_SECONDS)
    assert all(is_alive(pid) for pid in run.pids.values())
    os.kill(run.pids[0], signal.SIGCONT)


def stop_replica_and_mark_failed(run: LiveRun, cell: Cell) -> None:
    os.kill(run.pids[0], signal.SIGSTOP)
    mark("failed")(run, cell)


def tasks_test(run: LiveRun, cell: Cell) -> None:
    """Run the same task by command while the run trains; it gets a device of its own and gives it back."""
    before = set(run.gates.parent.iterdir())
    command = subprocess.Popen(
        # Without a date, Airflow 3.3.2 deletes a run of the DAG that has none.
        run.home.command("tasks", "test", run.dag_id, "train", "2026-01-01", "--map-index", "0"),
        env=run.home.environment,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        run.wait(
            lambda: [path for path in set(run.gates.parent.iterdir()) - before if path.name.startswith(TEMPORARY_RUN)],
            "the command's replica",
        )
        (gates,) = run.gates.parent.glob(f"{TEMPORARY_RUN}*")
        assert len(run.devices()) == 2
        for gate in ("starting", "training", "saving"):
            (gates / f"open-{gate}").touch()
        output, _ = command.communicate(timeout=120)
    finally:
        command.kill()
        command.wait()
    assert "[train 0] saved" in output, output[-4000:]
    assert "Marking task as SUCCESS" in output or "state=success" in output, output[-4000:]


ACTS: Mapping[str, Act] = {
    "kill-task": kill_task,
    "kill-airflow-supervisor": kill_airflow_supervisor,
    "kill-supervisor": kill_supervisor,
    "kill-zygote": kill_zygote,
    "kill-replica": kill_replica,
    "stubborn-replica": mark("failed"),
    "daemon": see_daemon,
    "mark-failed": mark("failed"),
    "mark-success": mark("success"),
    "clear": clear,
    "partition": partition,
    "stop-supervisor": stop_supervisor,
    "stop-supervisor-mark-failed": stop_supervisor_and_mark_failed,
    "tasks-test": tasks_test,
    "gang-kill-task": kill_task,
    "gang-kill-supervisor": kill_supervisor,
    "gang-kill-replica": kill_replica,
    "gang-mark-failed": mark("failed"),
    "gang-clear": clear,
    "gang-stop-replica": stop_replica,
    "gang-stop-replica-mark-failed": stop_replica_and_mark_failed,
    "deferred-mark-failed": mark("failed"),
    "deferred-clear": clear,
    "deferred-kill-replica": kill_replica,
    "deferred-kill-supervisor": kill_supervisor,
}
DAGS = {"kill-zygote": "matrix_zygote", "gang": "matrix_gang", "deferred": "matrix_deferred"}  # by event, or its kind
PROGRAMS = {"stubborn-replica": ("stubborn",), "daemon": ("daemon",)}  # files that the program looks for
GRACES = {"stubborn-replica": 2.0, "gang-stop-replica-mark-failed": 2.0}


def run_of(airflow: RunningAirflow, cell: Cell) -> LiveRun:
    """The cell's run, which is still to be started."""
    dag_id = DAGS.get(cell.event) or DAGS.get(cell.event.partition("-")[0], "matrix")
    return LiveRun(airflow, cell.id, dag_id, GRACES.get(cell.event, 10.0))


def start(run: LiveRun, cell: Cell) -> None:
    """Bring a run into the cell's phase."""
    run.start(cell.phase, *PROGRAMS.get(cell.event, ()))
    if is_deferred(cell):
        run.wait_deferred()
    elif run.dag_id == DAGS["gang"]:
        run.wait_attached()


def play(airflow: RunningAirflow, cell: Cell) -> None:
    """Play a cell whose event hits its own run alone."""
    if cell.event == "full-of-waiters":
        play_full_of_waiters(airflow, cell)
        return
    run = run_of(airflow, cell)
    with explained(run):
        start(run, cell)
        ACTS[cell.event](run, cell)
        compare(run, cell)


def play_full_of_waiters(airflow: RunningAirflow, cell: Cell) -> None:
    """Three runs wait in a pool of two slots; a fourth, for which there are devices, is not held up by them."""
    waiters = [LiveRun(airflow, f"{cell.id}-{number}", "matrix_waiters") for number in range(3)]
    passing = LiveRun(airflow, f"{cell.id}-passing", "matrix_waiters")
    with explained(*waiters, passing):
        for waiter in waiters:
            waiter.start(WAITING)
        passing.start(TRAINING)
        passing.open()
        assert airflow.wait_run(passing.dag_id, passing.run_id) == "success"
        assert {airflow.run_state(waiter.dag_id, waiter.run_id) for waiter in waiters} == {"running"}
        for waiter in waiters:
            compare(waiter, cell)


# --- shared events -----------------------------------------------------------------------------------------------


def kill_scheduler(airflow: RunningAirflow, runs: Mapping[str, LiveRun]) -> None:
    airflow.parts["scheduler"].kill()
    airflow.parts["scheduler"].start()


def stop_api_server(airflow: RunningAirflow, runs: Mapping[str, LiveRun]) -> None:
    until = time.monotonic() + API_OUTAGE_SECONDS
    airflow.parts["api-server"].stop(deadline_seconds=10)
    time.sleep(until - time.monotonic())
    assert all(is_alive(pid) for run in runs.values() for pid in run.pids.values())
    airflow.parts["api-server"].start()
    airflow.wait_healthy()


def lock_ledger(airflow: RunningAirflow, runs: Mapping[str, LiveRun]) -> None:
    """Hold the ledger's write lock; one of the runs comes to its end meanwhile."""
    path = airflow.home.settings.ledger_url.removeprefix("sqlite:///")
    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    connection.execute("BEGIN IMMEDIATE")
    try:
        ending = runs[f"lock-ledger-{SAVING}"]
        ending.open()
        time.sleep(LEDGER_OUTAGE_SECONDS)
        assert ending.instances()["train[0]"]["state"] == "running"
    finally:
        connection.close()


def kill_triggerer(airflow: RunningAirflow, runs: Mapping[str, LiveRun]) -> None:
    airflow.parts["triggerer"].kill()
    airflow.parts["triggerer"].start()
    wait_watched_again(runs)


def kill_trigger_process(airflow: RunningAirflow, runs: Mapping[str, LiveRun]) -> None:
    part = airflow.parts["triggerer"]
    assert part.process is not None
    (runner,) = filter(runs_triggers, psutil.Process(part.process.pid).children())
    runner.kill()
    part.process.wait(60)
    part.start()
    wait_watched_again(runs)


def runs_triggers(child: psutil.Process) -> bool:
    try:
        return child.cmdline()[-1:] == ["triggerer"]
    except psutil.Error:  # a zombie: its server of logs, whose port an earlier one that was killed has left taken
        return False


def wait_watched_again(runs: Mapping[str, LiveRun]) -> None:
    """Wait until triggers of the new triggerer show the output of what trains."""
    for run in runs.values():
        run.wait(lambda run=run: all(run.triggers_that_show(each) > 1 for each in run.pids), "output by the triggers")


SHARED_ACTS = {
    "kill-scheduler": kill_scheduler,
    "stop-api-server": stop_api_server,
    "lock-ledger": lock_ledger,
    "deferred-kill-triggerer": kill_triggerer,
    "deferred-kill-trigger-process": kill_trigger_process,
}
OF_TRIGGERER = ("deferred-kill-triggerer", "deferred-kill-trigger-process")  # events that hit deferred tasks only
HIT_BY = {"deferred-stop-api-server": "stop-api-server"}  # event -> the one that hits its runs, too


def shared_event(cell: Cell) -> str:
    """Name of what is done, once, to all the runs that it hits."""
    return HIT_BY.get(cell.event, cell.event)


def play_shared(airflow: RunningAirflow, event: str) -> dict[str, BaseException | None]:
    """Hit runs in several phases at once; return cell's id -> what is not as the table says."""
    cells = [cell for cell in CELLS if shared_event(cell) == event]
    runs = {cell.id: run_of(airflow, cell) for cell in cells}
    with ThreadPoolExecutor(len(cells)) as pool:
        try:
            with explained(*runs.values()):
                started = [pool.submit(start, runs[cell.id], cell) for cell in cells]
                wait(started)  # all of them: what is ended below must not be starting
                for each in started:
                    each.result()
                act_on_shared(airflow, event, runs)
        except Exception as error:  # noqa: BLE001 (raised in each of the cells)
            return {cell.id: error for cell in cells}
        ends = {cell.id: pool.submit(compare_shared, runs[cell.id], cell) for cell in cells}
        return {name: end.exception() for name, end in ends.items()}


def act_on_shared(airflow: RunningAirflow, event: str, runs: Mapping[str, LiveRun]) -> None:
    """Do what the event is; a part that it leaves down when it fails is started for the cells that follow."""
    try:
        SHARED_ACTS[event](airflow, runs)
    except Exception:
        airflow.revive()
        raise


def compare_shared(run: LiveRun, cell: Cell) -> None:
    with explained(run):
        compare(run, cell)


# --- what must be true afterwards --------------------------------------------------------------------------------


def compare(run: LiveRun, cell: Cell) -> None:
    """Check what the event leaves, let everything go on, and check the end."""
    for replica, fate in enumerate(cell.fates):
        if fate is Fate.ENDED:
            await_end(run, cell, replica)
    run.wait(lambda: not is_alive(run.victim), "the end of the task's process")
    run.wait(lambda: has_tried(run, cell.tries), f"tries {dict(cell.tries)}")
    for replica, fate in enumerate(cell.fates):
        await_fate(run, cell, replica, fate)
    if not (cell.event == "lock-ledger" and cell.phase == SAVING):  # that run has ended meanwhile
        run.wait(lambda: len(run.devices()) == cell.held, f"{cell.held} devices held, not {run.devices()}")
    run.open()
    ended = run.airflow.wait_run(run.dag_id, run.run_id)
    found = {name: (row["state"], row["try_number"]) for name, row in run.instances().items()}
    assert ended == cell.run_state, found
    for name in INSTANCES:
        state, tries = found[name]
        assert state == cell.states.get(name, "success"), found
        wanted = cell.tries.get(name, 1)
        assert tries == wanted or (wanted == SEVERAL and tries >= 2) or (wanted == SOME and tries >= 1), found
    for replica, fate in enumerate(cell.fates):
        if fate in {Fate.GOES_ON, Fate.ANEW}:
            count = 1 if fate is Fate.GOES_ON else 2
            assert len(run.arrivals("starting", replica)) == count, f"replica {replica}, {fate}"
    check_aftermath(run)


def has_tried(run: LiveRun, tries: Mapping[str, int]) -> bool:
    """Tell whether the later tries that are expected are under way."""
    rows = run.instances()
    return all(
        rows[name]["try_number"] >= abs(number) and rows[name]["state"] in UNDER_WAY
        for name, number in tries.items()
        if abs(number) > 1
    )


def await_fate(run: LiveRun, cell: Cell, replica: int, fate: Fate) -> None:
    pid = run.pids.get(replica, 0)
    if fate is Fate.ANEW:
        run.wait_arrival("starting", replica, other_than=pid)
        assert not is_alive(pid)
    elif fate is Fate.GOES_ON:
        assert is_alive(pid) or (run.gates / f"open-{SAVING}").exists(), f"replica {replica} ended"


def await_end(run: LiveRun, cell: Cell, replica: int) -> None:
    """Wait for the end of a replica that is stopped; a save that was under way is finished within its grace."""
    pid = run.pids[replica]
    if cell.phase == SAVING:
        run.wait((run.gates / f"stopped-{replica}-{pid}").exists, "SIGTERM of the program")
        (run.gates / f"open-{SAVING}-{replica}").touch()
    run.wait(lambda: not is_alive(pid), f"the end of replica {replica}", run.grace_seconds + 30)
    if cell.phase == SAVING:
        newest = latest_complete(run.checkpoints(replica)).prefix
        assert newest is not None
        assert newest > run.complete[replica]
        run.complete[replica] = newest


def check_aftermath(run: LiveRun) -> None:
    """Nothing of the run is alive or reserved, and no checkpoint that was complete is lost."""
    run.wait(lambda: not run.processes(), "no process left", run.grace_seconds + AFTERMATH_SECONDS)
    assert run.devices() == []
    for prefix in run.complete.values():
        verify(prefix)
