"""The operator behind training and evaluation: one task instance looks after one replica of a gang."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import jinja2
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowRescheduleException

from airflow_tf.core.errors import AirflowTfError, DevicesBusyError, LedgerError, ReplicaStoppedError
from airflow_tf.core.identity import GangKey, RunFolders
from airflow_tf.core.launch import GangLaunch, ReplicaLaunch
from airflow_tf.core.ledger import GangLedger, Outcome, ReplicaRecord
from airflow_tf.core.settings import Settings
from airflow_tf.core.states import AttemptState, MemberState
from airflow_tf.core.units import parse_seconds
from airflow_tf.hooks.airflow_run import TaskRun, execution_api_health_url, is_reachable
from airflow_tf.hooks.settings import load_settings
from airflow_tf.ledger import open_ledger
from airflow_tf.operators.gang import DeviceClaim, airflow_errors
from airflow_tf.operators.launching import LaunchingOperator
from airflow_tf.supervisor import results
from airflow_tf.supervisor.client import GangClient
from airflow_tf.supervisor.protocol import Attach
from airflow_tf.supervisor.view import Observer, ReplicaView

MAX_REFUSALS = 3


class ReplicaOperator(LaunchingOperator):
    """Run one replica of a program on its own devices, under a supervisor that outlives this task.

    Subclasses say what the replica is for; see :class:`airflow_tf.operators.train.TensorFlowTrainOperator`
    for the parameters.
    """

    template_fields: Sequence[str] = (*LaunchingOperator.template_fields, "python")
    ui_color = "#f6c85f"

    def __init__(
        self,
        *,
        python: str | None = None,
        start_method: str = "zygote",
        device_timeout: str | float = "1h",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.python = python
        self.start_method = start_method
        self.device_timeout = device_timeout
        self._view: ReplicaView | None = None
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
        except jinja2.TemplateError as error:
            ledger = open_ledger(load_settings())
            self._release_unused(ledger, TaskRun.from_context(context).gang(ledger.ledger_id))
            raise AirflowFailException(
                f"a template of task {self.task_id} cannot be rendered: {error}. Correct it; "
                "besides Airflow's variables it may use replica.index, replica.count and inputs.<name>."
            ) from error

    def execute(self, context: Context) -> dict[str, Any]:
        """Stage what is missing, take the devices, look after the replica until it has a durable result."""
        with airflow_errors():
            run = TaskRun.from_context(context)
            settings = load_settings()
            ledger = open_ledger(settings)
            key, folders = run.gang(ledger.ledger_id), run.folders(settings)
            with self._reservation_given_back(ledger, key, run):
                launch = self._launch(context, settings, folders, self.replica)
                ledger.open_gang(key, launch.count, str(folders.gang(key)))
                record = ledger.enter(key, self.replica, run.view)
                if record.cancelled_by is not None:
                    raise ReplicaStoppedError(
                        f"replica {self.replica} is not started",
                        f"its run was cancelled by {record.cancelled_by}",
                        "Clear this task to train it after all.",
                    )
                outcome = self._already_succeeded(ledger, key, folders, record)
                if outcome is None:
                    outcome = self._look_after(run, ledger, settings, key, launch, record)
                return self._result(outcome)

    @contextlib.contextmanager
    def _reservation_given_back(self, ledger: GangLedger, key: GangKey, run: TaskRun) -> Iterator[None]:
        """Release devices that were reserved for this replica but that no supervisor took, if no other try will."""
        try:
            yield
        except AirflowRescheduleException:
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
        member = ledger.member(key, self.replica)
        if member is not None and member.state == MemberState.RESERVED:
            ledger.release(member)

    def on_kill(self) -> None:
        """Stop the replica, or let go of it where Airflow's API is away: that is an outage, not a user's wish.

        Runs in a signal handler: it only signals.
        """
        view = self._view
        if view is None:
            return
        if not self._health_url or is_reachable(self._health_url):
            view.stop("its task was killed")
        else:
            view.detached = True

    # --- while it runs -----------------------------------------------------------------------------------------

    def _already_succeeded(
        self, ledger: GangLedger, key: GangKey, folders: RunFolders, record: ReplicaRecord
    ) -> Outcome | None:
        """Return a success of this generation that is durable: a try after a lost answer must not train again."""
        outcome = record.outcome
        if outcome is None and record.attempts:
            found = results.last_outcome(results.replica_folder(folders.gang(key), self.replica, record.generation))
            if found is not None:
                attempt, outcome = found
                ledger.end_attempt(key, self.replica, record.generation, attempt, outcome)
        if outcome is not None and outcome.state is AttemptState.SUCCEEDED:
            self.log.info("replica %s has succeeded already (generation %s)", self.replica, record.generation)
            return outcome
        return None

    def _look_after(
        self,
        run: TaskRun,
        ledger: GangLedger,
        settings: Settings,
        key: GangKey,
        launch: ReplicaLaunch,
        record: ReplicaRecord,
    ) -> Outcome:
        """Claim devices, attach to the replica (starting it), and follow it to its outcome."""
        folder = run.folders(settings).gang(key)
        request = self.device_request()
        timeout_seconds = parse_seconds(self.device_timeout)
        claim = DeviceClaim(ledger, settings, key, request, run, self.log, timeout_seconds, folder)
        client = GangClient(
            GangLaunch(
                key=key.to_json(),
                count=1 if run.is_alone else launch.count,
                folder=str(folder),
                python=self.python or sys.executable,
                start_method=self.start_method,
                environment=launch.environment,
                settings=settings.to_json(),
            )
        )
        self._health_url = "" if run.in_process else execution_api_health_url()
        refusals = 0
        while True:
            member = claim.member(self.replica)
            self._devices = [device.uuid for device in member.devices]
            attach = Attach(
                run.view,
                self.replica,
                record.generation,
                self._plan(),
                (launch,),
                (member,),
                run.tries_left,
                run.orphan_grace_seconds(),
            )
            self._view = ReplicaView(client, attach, Observer(self._log_output, self.log.info, lambda _: None))
            try:
                return self._view.watch()
            except DevicesBusyError as error:
                claim.wait(self.replica, str(error))
            except LedgerError as error:  # the reservation went while an earlier process of this replica was ended
                refusals += 1
                if refusals == MAX_REFUSALS:
                    raise
                self.log.info("reserving anew: %s", error)

    def _log_output(self, text: str) -> None:
        self.log.info("[%s %s] %s", self.task_id, self.replica, text)

    # --- after it ended ----------------------------------------------------------------------------------------

    def _result(self, outcome: Outcome) -> dict[str, Any]:
        """Return the XCom of a success; raise what Airflow must do about anything else."""
        if outcome.state is AttemptState.SUCCEEDED:
            return {
                "replica": self.replica,
                "checkpoint": outcome.checkpoint,
                "metrics": outcome.metrics,
                "devices": self._devices,
            }
        text = f"replica {self.replica} {outcome.state}: {outcome.message}"
        if outcome.cause.may_restart:
            raise AirflowException(text)
        raise AirflowFailException(text)
