"""What a drive does where real processes cannot be had: ones that outlive SIGKILL, interpreters that never get ready."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from airflow_tf.core.causes import Evidence
from airflow_tf.core.devices import Device, Member
from airflow_tf.core.errors import LedgerError
from airflow_tf.core.identity import View
from airflow_tf.core.launch import Plan, ReplicaLaunch
from airflow_tf.core.ledger import Outcome
from airflow_tf.core.states import AttemptState, ExitCause
from airflow_tf.supervisor import attempt as module
from airflow_tf.supervisor.attempt import ReplicaRun, StopOrder, Watchdog
from airflow_tf.supervisor.drive import Drive
from airflow_tf.supervisor.processes import ReplicaProcess
from airflow_tf.supervisor.protocol import Attach
from airflow_tf.supervisor.seat import Seat

NO_SUCH_PID = 2**22 + 1
SIGKILLED, ONE, THREE = 9, 1 << 8, 3 << 8
"""Wait statuses."""


class FakeProcess:
    """A process that ends when the test says so."""

    def __init__(self, *, obeys: bool = False) -> None:
        self.pid = NO_SUCH_PID
        self.obeys = obeys
        self.died_at: float | None = None
        self.status: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        self.signals: list[int] = []

    def send(self, number: int) -> None:
        self.signals.append(number)
        if self.obeys and not self.status.done():
            self.ended(number)

    def ended(self, status: int) -> None:
        self.died_at = asyncio.get_running_loop().time()
        self.status.set_result(status)

    def close(self) -> None:
        return


class FakeHost:
    """A supervisor without ledger and locks."""

    installation = "installation"

    def __init__(self) -> None:
        self.processes: dict[int, FakeProcess] = {}
        self.freed: dict[int, bool] = {}
        self.recorded: list[Outcome] = []
        self.is_ready = True
        self.refuses = False
        self.refuses_start_of = -1
        self.has_started = asyncio.Condition()
        self.obeying: frozenset[int] = frozenset()

    async def confirm(self, members: Sequence[Member]) -> None:
        if self.refuses:
            raise LedgerError(f"{len(members)} members are no longer reserved")

    async def free(self, member: Member, stuck: ReplicaRun | None) -> None:
        self.freed[member.replica] = stuck is None

    def testify(self, run: ReplicaRun, member: Member) -> Evidence:
        assert run.launch.replica == member.replica
        return Evidence()

    def memory_left(self, member: Member) -> str:
        assert member.replica in self.processes
        return ""

    def watchdogs(self, plan: Plan, members: Mapping[int, Member]) -> Sequence[Watchdog]:
        assert plan.is_gang == (len(members) > 1)
        return []

    async def record_start(self, seat: Seat, member: Member, token: str) -> int:
        assert token
        assert seat.number == member.replica
        if seat.number == self.refuses_start_of:
            raise LedgerError("its reservation was taken away")
        return seat.tokens

    async def record_end(self, launch: ReplicaLaunch, outcome: Outcome) -> None:
        assert launch.attempt
        assert launch.replica not in self.freed, "nobody would record its end if its supervisor died in between"
        self.recorded.append(outcome)

    async def get_ready(self, launch: ReplicaLaunch) -> None:
        assert launch.token
        if not self.is_ready:
            await asyncio.Event().wait()

    async def start_process(self, launch: ReplicaLaunch, path: Path) -> ReplicaProcess:
        assert path.name == "launch.json"
        self.processes[launch.replica] = FakeProcess(obeys=launch.replica in self.obeying)
        async with self.has_started:
            self.has_started.notify_all()
        return cast("ReplicaProcess", self.processes[launch.replica])


class Watching:
    """A view's connection."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.has_attempt = asyncio.Event()

    def notify(self, message: dict[str, Any]) -> None:
        self.messages.append(message)
        if message["type"] == "attempt":
            self.has_attempt.set()

    @property
    def outcome(self) -> Outcome:
        return Outcome.from_json(next(message["outcome"] for message in self.messages if message["type"] == "result"))


class Case:
    """A drive over fakes, with one view per replica."""

    def __init__(self, folder: Path, count: int, **plan: Any) -> None:
        self.host = FakeHost()
        self.views = {number: Watching() for number in range(count)}
        seats = {number: Seat(number) for number in range(count)}
        for number, seat in seats.items():
            seat.watch(self.views[number])
        request = Attach(
            view=View("ti", 1, 1),
            replica=0,
            generation=1,
            plan=Plan(**plan),
            launches=tuple(
                ReplicaLaunch(number, count, "train.py", "/code", require_checkpoint=False) for number in range(count)
            ),
            members=tuple(
                Member(1, 7, number, (Device(f"cpu-{number}", "cpu", "slot", number, "-1"),)) for number in range(count)
            ),
            tries_left=0,
            orphan_grace_seconds=60.0,
        )
        self.drive = Drive(self.host, seats, request, folder)

    async def started(self, replica: int) -> FakeProcess:
        await self.views[replica].has_attempt.wait()
        return self.host.processes[replica]


def drive(case: Callable[[], Case], act: Callable[[Case], Awaitable[None]], timeout_seconds: float = 20.0) -> Case:
    """Run a drive while ``act`` plays the world around it."""

    async def play() -> Case:
        made, ended = case(), asyncio.Event()
        made.drive.begin(ended.set)
        await act(made)
        await ended.wait()
        return made

    return asyncio.run(asyncio.wait_for(play(), timeout_seconds))


@pytest.fixture
def survivors(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make these pids outlive SIGKILL in the tree of replica 1."""
    pids: list[int] = []
    monkeypatch.setattr(module, "kill_tree", lambda token, *_args, **_more: pids if ".00001." in token else [])
    return pids


TWO_WORKERS: dict[str, Any] = {"strategy": "sync", "roles": {"worker": 2}, "restarts": 3}


def test_a_process_that_outlives_sigkill_keeps_its_device_and_its_task_says_so(
    tmp_path: Path, survivors: list[int]
) -> None:
    survivors.append(4711)

    async def act(case: Case) -> None:
        first, second = await case.started(0), await case.started(1)
        second.ended(SIGKILLED)
        first.ended(SIGKILLED)

    case = drive(lambda: Case(tmp_path, 2, **TWO_WORKERS), act)
    stuck = case.views[1].outcome
    assert (stuck.state, stuck.cause) == (AttemptState.LOST, ExitCause.INFRASTRUCTURE)
    assert "processes [4711] survived SIGKILL" in stuck.message
    assert case.host.freed == {0: True, 1: False}
    assert len(case.host.recorded) == 2, "it was started again although its device is not free"


def test_an_interpreter_that_never_gets_ready_fails_at_the_start_deadline(tmp_path: Path) -> None:
    def slow() -> Case:
        case = Case(tmp_path, 1, start_timeout_seconds=0.1)
        case.host.is_ready = False
        return case

    async def act(_case: Case) -> None:
        return

    case = drive(slow, act)
    assert case.views[0].outcome.state is AttemptState.LOST
    assert "not ready: waited 0 s" in case.views[0].outcome.message
    assert case.host.processes == {}


def test_a_stop_before_the_interpreter_is_ready_starts_nothing(tmp_path: Path) -> None:
    def slow() -> Case:
        case = Case(tmp_path, 1)
        case.host.is_ready = False
        return case

    async def act(case: Case) -> None:
        case.drive.stop(StopOrder("enough"))

    case = drive(slow, act)
    assert (case.views[0].outcome.state, case.views[0].outcome.message) == (AttemptState.STOPPED, "enough")
    assert case.host.processes == {}
    assert case.host.freed == {0: True}


def test_the_order_of_deaths_decides_not_that_of_reaping(tmp_path: Path) -> None:
    async def act(case: Case) -> None:
        first, second = await case.started(0), await case.started(1)
        second.died_at, first.died_at = 1.0, 2.0
        first.status.set_result(SIGKILLED)
        second.status.set_result(SIGKILLED)

    case = drive(lambda: Case(tmp_path, 2, **TWO_WORKERS | {"restarts": 0}), act)
    assert case.views[1].outcome.cause is ExitCause.KILLED
    assert case.views[0].outcome.cause is ExitCause.VICTIM


def test_one_that_lost_its_peers_waits_for_the_peer_that_failed(tmp_path: Path) -> None:
    folder = tmp_path / "replica-0" / "generation-1" / "attempt-1"
    error = "UnavailableError: The following tasks are unhealthy (stopped sending heartbeats): /job:worker/task:1"

    async def act(case: Case) -> None:
        first, second = await case.started(0), await case.started(1)
        (folder / "metrics.jsonl").write_text('{"step": 3}\n')
        (folder / "output.log").write_text(f"tensorflow.python.framework.errors_impl.{error}\n")
        first.ended(ONE)
        await asyncio.sleep(0.3)  # its teardown
        second.ended(THREE)

    case = drive(lambda: Case(tmp_path, 2, **TWO_WORKERS), act)
    assert (case.views[1].outcome.cause, case.views[1].outcome.exit_code) == (ExitCause.USER_ERROR, 3)
    assert case.views[0].outcome.message.startswith("ended because worker 1 failed: the program ended with exit code 3")
    assert "it lost its peers" in case.views[0].outcome.message


def test_a_refused_reservation_is_told_and_nothing_runs(tmp_path: Path) -> None:
    def refused() -> Case:
        case = Case(tmp_path, 1)
        case.host.refuses = True
        return case

    async def act(_case: Case) -> None:
        return

    case = drive(refused, act)
    assert [message["type"] for message in case.views[0].messages] == ["refused"]
    assert case.drive.verdict is None


def test_an_attempt_of_which_not_all_could_be_recorded_ends_for_those_that_were(tmp_path: Path) -> None:
    def half_taken_away() -> Case:
        case = Case(tmp_path, 2, **TWO_WORKERS)
        case.host.refuses_start_of = 1
        return case

    async def act(_case: Case) -> None:
        return

    case = drive(half_taken_away, act)
    assert [message["type"] for message in case.views[0].messages] == ["refused"]
    assert [(outcome.state, outcome.cause) for outcome in case.host.recorded] == [
        (AttemptState.LOST, ExitCause.INFRASTRUCTURE)
    ]
    assert case.host.freed == {0: True, 1: True}


def test_an_attempt_whose_folder_cannot_be_made_is_recorded_as_lost(tmp_path: Path) -> None:
    (tmp_path / "replica-0").write_text("where its folder belongs")

    async def act(_case: Case) -> None:
        return

    case = drive(lambda: Case(tmp_path, 1), act)
    assert "NotADirectoryError" in case.views[0].messages[0]["error"]["why"]
    assert [outcome.state for outcome in case.host.recorded] == [AttemptState.LOST]
    assert case.host.freed == {0: True}


SERVED: dict[str, Any] = {"strategy": "async", "roles": {"chief": 1, "worker": 1, "ps": 1}, "restarts": 1}
ASYNC_WATCHED: dict[str, Any] = {"strategy": "async", "roles": {"chief": 1, "worker": 1, "ps": 1, "evaluator": 1}}


def obeying(folder: Path, count: int, **plan: Any) -> Case:
    """Return a case in which all but the first end at the first signal."""
    case = Case(folder, count, **plan)
    case.host.obeying = frozenset(range(1, count))
    return case


def test_a_success_stays_one_whatever_dies_while_the_evaluator_looks_at_the_last_checkpoint(tmp_path: Path) -> None:
    told = tmp_path / "replica-3" / "generation-1" / "attempt-1" / "training_ended"

    async def act(case: Case) -> None:
        chief, worker, server, evaluator = [await case.started(number) for number in range(4)]
        chief.ended(0)
        while not told.exists():  # noqa: ASYNC110 (a file, not an event)
            await asyncio.sleep(0.01)
        for process in (worker, server):
            if not process.status.done():
                process.ended(SIGKILLED)
        evaluator.ended(0)

    case = drive(lambda: obeying(tmp_path, 4, **ASYNC_WATCHED), act)
    assert [view.outcome.state for view in case.views.values()] == [AttemptState.SUCCEEDED] * 4


def test_an_evaluator_has_one_deadline_and_is_ended_at_it(tmp_path: Path) -> None:
    async def act(case: Case) -> None:
        (await case.started(0)).ended(0)

    plan = ASYNC_WATCHED | {"evaluator_grace_seconds": 0.2}
    case = drive(lambda: obeying(tmp_path, 4, **plan), act)
    assert [view.outcome.state for view in case.views.values()] == [AttemptState.SUCCEEDED] * 4


@pytest.mark.parametrize("delay_seconds", [0.0, 0.2])
def test_a_worker_and_a_server_that_die_together_cost_one_restart(tmp_path: Path, delay_seconds: float) -> None:
    async def act(case: Case) -> None:
        first = [await case.started(number) for number in range(3)]
        first[1].ended(SIGKILLED)
        await asyncio.sleep(delay_seconds)
        first[2].ended(SIGKILLED)
        first[0].obeys = True
        async with case.host.has_started:
            await case.host.has_started.wait_for(lambda: all(case.host.processes[n] is not first[n] for n in range(3)))
        case.host.processes[0].ended(0)

    case = drive(lambda: obeying(tmp_path, 3, **SERVED), act)
    assert [view.outcome.state for view in case.views.values()] == [AttemptState.SUCCEEDED] * 3


def test_a_worker_that_was_started_again_must_join_in_time_too(tmp_path: Path) -> None:
    async def act(case: Case) -> None:
        first = [await case.started(number) for number in range(3)]
        for number in (0, 1, 2):
            path = tmp_path / f"replica-{number}" / "generation-1" / "attempt-1" / "metrics.jsonl"
            path.write_text('{"step": 1}\n')  # it has joined
        await asyncio.sleep(0.5)  # at the next look
        first[0].obeys = True
        first[1].ended(SIGKILLED)

    case = drive(lambda: obeying(tmp_path, 3, **SERVED | {"start_timeout_seconds": 2.0}), act)
    root = case.views[1].outcome
    assert root.cause is ExitCause.RENDEZVOUS
    assert "worker 0: did not join its gang within 2 s" in root.message
