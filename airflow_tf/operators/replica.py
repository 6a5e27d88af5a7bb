"""The operator behind training and evaluation: one task instance looks after one replica of a gang."""

from __future__ import annotations

import contextlib
import datetime as dt
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import jinja2
from airflow.sdk import Context
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowRuntimeError,
    AirflowSkipException,
    TaskDeferred,
)

from airflow_tf.core.devices import Member
from airflow_tf.core.errors import (
    AirflowTfError,
    DevicesBusyError,
    LedgerError,
    LedgerUnavailableError,
    ReplicaStoppedError,
    ReplicaTimeoutError,
)
from airflow_tf.core.identity import GangKey, RunFolders
from airflow_tf.core.launch import GangLaunch
from airflow_tf.core.ledger import GangLedger, Outcome, ReplicaRecord
from airflow_tf.core.policy import DEFERRED_ORPHAN_GRACE_SECONDS
from airflow_tf.core.settings import Settings
from airflow_tf.core.states import AttemptState, MemberState
from airflow_tf.core.units import parse_seconds
from airflow_tf.core.verdict import Answer, answer
from airflow_tf.hooks.airflow_run import (
    AWAY_SECONDS,
    RUNNING,
    TaskRun,
    execution_api_health_url,
    is_reachable,
    task_states,
    user_mark,
    without_date,
)
from airflow_tf.hooks.mapping import refuse_mapped_group
from airflow_tf.hooks.settings import load_settings
from airflow_tf.ledger import open_ledger
from airflow_tf.operators.deferral import DeferringOperator
from airflow_tf.operators.gang import DeviceClaim, airflow_errors, check_ledger
from airflow_tf.operators.launching import Program
from airflow_tf.operators.retry import FailureClassPolicy, ReplicaEndedError
from airflow_tf.operators.spec import spec_digest
from airflow_tf.supervisor import results
from airflow_tf.supervisor.client import GangClient
from airflow_tf.supervisor.protocol import Attach
from airflow_tf.supervisor.tail import Position
from airflow_tf.supervisor.view import RECORD_SECONDS, SIBLINGS_SECONDS, Observer, ReplicaView

MAX_REFUSALS = 3


class ReplicaOperator(DeferringOperator):
    """Run one replica of a program on its own devices, under a supervisor that outlives this task.

    Subclasses say what the replica is for; see :class:`airflow_tf.operators.train.TensorFlowTrainOperator`
    for the parameters.
    """

    template_fields: Sequence[str] = (*DeferringOperator.template_fields, "python")
    ui_color = "#f6c85f"

    _is_numbered_by_map_index: ClassVar[bool] = False

    def __init__(
        self,
        *,
        python: str | None = None,
        code: str | None = None,
        working_directory: str | None = None,
        start_method: str = "zygote",
        device_timeout: str | float = "1h",
        **kwargs: Any,
    ) -> None:
        if kwargs.get("retry_policy") is None:  # a mapped task gives None
            kwargs["retry_policy"] = FailureClassPolicy()
        super().__init__(**kwargs)
        if not self._is_numbered_by_map_index:
            refuse_mapped_group(self)
        self.python = python
        self.code = code
        self.working_directory = working_directory
        self.start_method = start_method
        self.device_timeout = device_timeout
        self._view: ReplicaView | None = None
        self._replicas: Sequence[int] = (self.replica,)
        self._devices: list[str] = []
        self._health_url = ""

    def _do_render_template_fields(
        self,
        parent: Any,  # noqa: ANN401 (Airflow's signature)
        template_fields: Iterable[str],
        context: Context,
        jinja_env: Any,  # noqa: ANN401 (Airflow's signature)
        seen_oids: set[int],
    ) -> None:
        """Fail the task at once if a template is wrong: no retry helps, and nothing stays reserved for it."""
        try:
            super()._do_render_template_fields(parent, template_fields, context, jinja_env, seen_oids)
        except (jinja2.TemplateError, AirflowTfError) as error:
            ledger = open_ledger(load_settings())
            self._release_unused(ledger, TaskRun.from_context(context).gang(ledger.ledger_id))
            if isinstance(error, AirflowTfError):  # of a file with a session config: it says what to do
                raise AirflowFailException(str(error)) from error
            todo = "Correct it; besides Airflow's variables it may use replica.index, replica.count and inputs.<name>."
            raise AirflowFailException(
                f"a template of task {self.task_id} cannot be rendered: {error}. {without_date(error) or todo}"
            ) from error

    def execute(self, context: Context) -> dict[str, Any]:
        """Stage what is missing, take the devices, look after the replica until it has a durable result."""
        return self._run(context)

    def _run(self, context: Context) -> dict[str, Any]:
        with airflow_errors():
            run = TaskRun.from_context(context)
            settings = load_settings()
            ledger = open_ledger(settings)
            check_ledger(context, run, ledger.ledger_id)
            key, folders = run.gang(ledger.ledger_id), run.folders(settings)
            with self._reservation_given_back(ledger, key, run):
                program = self._program(context, settings, folders)
                self._replicas = program.replicas
                ledger.open_gang(key, program.own.count, str(folders.gang(key)))
                record = self._enter(ledger, key, run, program)
                if record.cancelled_by is not None:
                    raise ReplicaStoppedError(
                        f"replica {self.replica} is not started",
                        f"its run was cancelled by {record.cancelled_by}",
                        "Clear this task to train it after all.",
                    )
                outcome = self._known_outcome(ledger, key, run, folders, record)
                if outcome is None:
                    outcome = self._look_after(run, ledger, settings, key, program, record)
                else:
                    self._show_rest(ledger, key, folders.gang(key), record, run)
                return self._result(context, folders.gang(key), outcome, self._devices)

    def _enter(self, ledger: GangLedger, key: GangKey, run: TaskRun, program: Program) -> ReplicaRecord:
        """Register this try; say where the generation began with something else than is declared now."""
        python = self.python or sys.executable
        spec = spec_digest(program.own, inputs=self.inputs or {}, request=self.device_request(), python=python)
        record = ledger.enter(key, self.replica, run.view, together=program.plan.is_gang, spec=spec)
        if record.spec and record.spec != spec:
            self.log.warning(
                "generation %s of replica %s began with another program, other arguments, inputs or devices than are "
                "declared now: what runs goes on with those; clear the task to use the new ones",
                record.generation,
                self.replica,
            )
        return record

    @contextlib.contextmanager
    def _reservation_given_back(self, ledger: GangLedger, key: GangKey, run: TaskRun) -> Iterator[None]:
        """Release devices that were reserved for this replica but that no supervisor took, if no other try will."""
        try:
            yield
        except (AirflowRescheduleException, TaskDeferred):
            raise
        except KeyboardInterrupt as error:
            # Airflow would retry it, and go on with the other replicas: nobody who types ^C wants that.
            ledger.cancel(key.key, "^C")
            self._release_unused(ledger, key)
            raise AirflowFailException(f"task {self.task_id} was interrupted from the keyboard") from error
        except BaseException as error:
            again = isinstance(error, AirflowException) and not isinstance(error, AirflowFailException)
            again = again or (isinstance(error, AirflowTfError) and error.retryable)
            if not (again and run.tries_left):
                self._release_unused(ledger, key)
            raise

    def _release_unused(self, ledger: GangLedger, key: GangKey) -> None:
        """Release what no supervisor took: this replica's devices, or all of a gang, which cannot do without it."""
        for number in self._replicas:
            member = ledger.member(key, number)
            if member is not None and member.state == MemberState.RESERVED:
                ledger.release(member)

    def on_kill(self) -> None:
        """Let the view ask what became of this task; let go of the replica where Airflow's API is away.

        An outage is not a user's wish, nor is another try of this task. Runs in a signal handler: it only signals.
        """
        view = self._view
        if view is None:
            return
        if not self._health_url:
            view.stop("its task was killed")
        elif is_reachable(self._health_url):
            view.killed = True
        else:
            view.detached = True

    # --- while it runs -----------------------------------------------------------------------------------------

    def _known_outcome(
        self, ledger: GangLedger, key: GangKey, run: TaskRun, folders: RunFolders, record: ReplicaRecord
    ) -> Outcome | None:
        """Return a durable outcome of this generation that counts for this try.

        A success does always: a try after a lost answer must not train again. So does what became of a gang that
        siblings of this try have looked at: one that comes late must not start it again.
        """
        outcome = record.outcome
        if outcome is None and record.attempts:
            found = results.last_outcome(results.replica_folder(folders.gang(key), self.replica, record.generation))
            if found is not None:
                attempt, outcome = found
                ledger.end_attempt(key, self.replica, record.generation, attempt, outcome)
        if outcome is not None and outcome.state is AttemptState.SUCCEEDED:
            self.log.info("replica %s has succeeded already (generation %s)", self.replica, record.generation)
            return outcome
        verdict = results.read_verdict(folders.gang(key))
        counts = verdict is not None and verdict.holds_for(record.generation, run.try_number)
        return outcome if counts else None

    def _look_after(
        self,
        run: TaskRun,
        ledger: GangLedger,
        settings: Settings,
        key: GangKey,
        program: Program,
        record: ReplicaRecord,
    ) -> Outcome:
        """Claim devices, attach to the replica (starting it), and follow it to its outcome."""
        folder = run.folders(settings).gang(key)
        request, turn = self.device_request(), self.turn(AWAY_SECONDS)
        timeout_seconds = parse_seconds(self.device_timeout)
        claim = DeviceClaim(ledger, settings, key, request, turn, run, self.log, timeout_seconds, folder)
        client = self._client(run, settings, key, folder, program)
        self._health_url = "" if run.in_process else execution_api_health_url()
        refusals = 0
        while True:
            current = self._with_copy(program, run, record, settings, folder)
            members = claim.members(self.replica, program.replicas)
            own = next(member for member in members if member.replica == self.replica)
            self._devices = [device.uuid for device in own.devices]
            self._tell_position(folder, record, run)
            self._view = self._new_view(run, ledger, key, client, current, members, record)
            try:
                outcome = self._view.watch()
            except ReplicaTimeoutError as error:
                raise self._timed_out() from error
            except DevicesBusyError as error:
                claim.wait(self.replica, str(error))
            except LedgerError as error:  # the reservation went while an earlier process of this replica was ended
                refusals += 1
                if refusals == MAX_REFUSALS:
                    raise
                self.log.info("reserving anew: %s", error)
                record = self._enter(ledger, key, run, program)  # a sibling may have opened a new generation
            else:
                if outcome is None:
                    self._leave(run, key, folder, record)
                if not outcome.is_cleared or self._view.mark:
                    return outcome
                # The earlier try was cleared, and its replica was still ending when this one came.
                record = self._enter(ledger, key, run, program)
            finally:
                self._view = None

    def _leave(self, run: TaskRun, key: GangKey, folder: Path, record: ReplicaRecord) -> NoReturn:
        """Give the slot back while the replica runs, or while only its siblings do."""
        if self.deferrable:
            self._hand_over(run, key, folder, record, self._devices)
        later = dt.datetime.now(tz=dt.UTC) + dt.timedelta(seconds=SIBLINGS_SECONDS)
        raise AirflowRescheduleException(later)  # type: ignore[no-untyped-call]

    def _client(self, run: TaskRun, settings: Settings, key: GangKey, folder: Path, program: Program) -> GangClient:
        launch = GangLaunch(
            key=key.to_json(),
            count=1 if run.is_alone else program.own.count,
            folder=str(folder),
            python=self.python or sys.executable,
            start_method=self.start_method,
            environment=program.own.environment,
            settings=settings.to_json(),
        )
        return GangClient(launch)

    def _new_view(
        self,
        run: TaskRun,
        ledger: GangLedger,
        key: GangKey,
        client: GangClient,
        program: Program,
        members: tuple[Member, ...],
        record: ReplicaRecord,
    ) -> ReplicaView:
        defers = self.deferrable and not run.in_process
        grace_seconds = max(run.orphan_grace_seconds(), DEFERRED_ORPHAN_GRACE_SECONDS if defers else 0.0)
        return ReplicaView(
            client,
            Attach(
                view=run.view,
                replica=self.replica,
                generation=record.generation,
                plan=program.plan,
                launches=program.launches,
                members=members,
                tries_left=run.tries_left,
                orphan_grace_seconds=grace_seconds,
            ),
            self._observer(ledger, key, run),
            attempts=record.attempts,
            position=record.log_position,
            timeout_seconds=self._left_seconds(record),
            leaves=defers,
            holds_slot=not run.in_process,
        )

    def _observer(self, ledger: GangLedger, key: GangKey, run: TaskRun) -> Observer:
        """Return what a view tells this task, and asks of it."""

        def shown(position: Position) -> None:
            try:
                ledger.renew_view(key, self.replica, run.view, position)
            except LedgerUnavailableError as error:
                self.log.info("not recorded how far the output was shown: %s", error)

        def mark() -> str:
            try:
                states = task_states(run.dag_id, run.run_id, run.task_id)
            except AirflowRuntimeError as error:
                self.log.info("not known why this task was killed: %s", error)
                return ""
            return user_mark(states[run.instance], RUNNING) if run.instance in states else "deleted"

        return Observer(self._log_output, self.log.info, shown, mark)

    def _tell_position(self, folder: Path, record: ReplicaRecord, run: TaskRun) -> None:
        """Say where the output is that earlier tries have shown."""
        if record.log_position == (0, 0) or run.try_number == 1:
            return
        path = results.replica_folder(folder, self.replica, record.generation)
        self.log.info(
            "earlier output is in the log of try %s, the whole in %s; where that try was killed, its last %.0f s of "
            "output may be repeated here",
            run.try_number - 1,
            path,
            RECORD_SECONDS,
        )

    # --- after it ended ----------------------------------------------------------------------------------------

    def _result(self, context: Context, folder: Path, outcome: Outcome, devices: list[str]) -> dict[str, Any]:
        """Return the XCom of a success; raise what Airflow must do about anything else."""
        verdict, tries_left = results.read_verdict(folder), TaskRun.from_context(context).tries_left
        root, plan = verdict.root if verdict is not None else None, self._plan(context)
        decision = answer(plan, self.replica, outcome, root, tries_left=tries_left)
        if decision is Answer.SUCCEED:
            return {
                "replica": self.replica,
                "checkpoint": outcome.checkpoint,
                "metrics": outcome.metrics,
                "devices": devices,
            }
        text = f"replica {self.replica} {outcome.state}: {outcome.message}"
        if decision is Answer.SKIP:
            raise AirflowSkipException(f"{text}. Its success is not required by success: {self.success}")
        if decision is Answer.RETRY:
            raise ReplicaEndedError(text, root.cause if plan.is_gang and root is not None else outcome.cause)
        raise AirflowFailException(text)
