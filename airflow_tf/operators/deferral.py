"""Waiting for a replica in the triggerer instead of a slot: handing it over, and coming back for its result."""

from __future__ import annotations

import time
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

from airflow.configuration import conf
from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowTaskTimeout, TaskDeferralError, TaskDeferralTimeout

from airflow_tf.core.errors import SupervisorLostError, ViewDetachedError
from airflow_tf.core.identity import GangKey
from airflow_tf.core.ledger import GangLedger, Outcome, ReplicaRecord
from airflow_tf.core.settings import Settings
from airflow_tf.core.units import parse_seconds
from airflow_tf.hooks.airflow_run import TaskRun
from airflow_tf.hooks.settings import load_settings
from airflow_tf.ledger import open_ledger
from airflow_tf.operators.gang import airflow_errors
from airflow_tf.operators.launching import LaunchingOperator
from airflow_tf.operators.settled import MARGIN_SECONDS
from airflow_tf.supervisor.acquire import reclaim, this_host
from airflow_tf.supervisor.client import has_supervisor, stop_replica
from airflow_tf.supervisor.results import read_verdict, replica_folder
from airflow_tf.supervisor.tail import OutputTail
from airflow_tf.triggers.replica import TIMED_OUT, ReplicaTrigger, Watched

AIRFLOW_MARGIN_SECONDS = 120.0
"""Airflow ends a deferral by itself so long after the execution timeout: where no triggerer runs."""

RESTART_SECONDS = 3.0
"""A supervisor that starts a replica again records that within this time."""

LOOK_SECONDS = 0.5


class DeferringOperator(LaunchingOperator):
    """Look after a replica from the triggerer while it runs.

    :param deferrable: hold no slot while the replica runs. ``tasks test`` and ``dags test`` wait in place.
    """

    def __init__(
        self, *, deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False), **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.deferrable = deferrable

    def _run(self, context: Context) -> dict[str, Any]:
        """Start the replica or attach to it, and return its result."""
        raise NotImplementedError

    def _result(self, context: Context, folder: Path, outcome: Outcome, devices: list[str]) -> dict[str, Any]:
        """Return the XCom of a success; raise what Airflow must do about anything else."""
        raise NotImplementedError

    def _log_output(self, text: str) -> None:
        self.log.info("[%s] %s", self._label, text)

    @property
    def _label(self) -> str:
        return f"{self.task_id} {self.replica}"

    def _left_seconds(self, record: ReplicaRecord) -> float | None:
        """Return what is left of the execution timeout, which is counted once over tries and deferrals; None: no limit.

        Airflow's own timer starts again with every process of this task.
        """
        if self.execution_timeout is None:
            return None
        return max(self.execution_timeout.total_seconds() - record.watched_seconds, 0.0)

    def _timed_out(self) -> AirflowTaskTimeout:
        assert self.execution_timeout is not None
        return AirflowTaskTimeout(
            f"replica {self.replica} was stopped: its execution_timeout of "
            f"{self.execution_timeout.total_seconds():.0f} s is over, counted over all tasks that looked after it"
        )

    def _hand_over(
        self, run: TaskRun, key: GangKey, folder: Path, record: ReplicaRecord, devices: list[str]
    ) -> NoReturn:
        """Leave the replica to a trigger."""
        left_seconds = self._left_seconds(record)
        watched = Watched(
            gang=key,
            replica=self.replica,
            view=run.view,
            generation=record.generation,
            folder=str(folder),
            host_id=this_host().host_id,
            label=self._label,
            timeout_seconds=None if self.execution_timeout is None else self.execution_timeout.total_seconds(),
        )
        self.log.info("the replica goes on in %s; this task holds no slot meanwhile", folder)
        self.defer(
            trigger=ReplicaTrigger(watched.to_json()),
            method_name=self.resume.__name__,
            kwargs={"devices": devices},
            timeout=None if left_seconds is None else timedelta(seconds=left_seconds + AIRFLOW_MARGIN_SECONDS),
        )

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:  # noqa: ANN401 (Airflow's signature)
        """Come back from a deferral, also from one that Airflow ended or whose trigger failed."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except TaskDeferralTimeout:
            return self.resume(context, TIMED_OUT)
        except TaskDeferralError as error:
            self.log.warning("its trigger failed (%s): this task looks after the replica itself", error)
            self.deferrable = False
            return self._run(context)

    def resume(self, context: Context, event: str = "", devices: list[str] | None = None) -> dict[str, Any]:
        """Show the rest of the output and return the result; wait again where the replica goes on.

        :param event: why the trigger fired.
        :param devices: what the replica was given.
        """
        with airflow_errors():
            run, settings = TaskRun.from_context(context), load_settings()
            ledger = open_ledger(settings)
            key = run.gang(ledger.ledger_id)
            folder = run.folders(settings).gang(key)
            if not ledger.is_newest_view(key, self.replica, run.view):
                raise ViewDetachedError("a newer try of this task looks after the replica")
            if event == TIMED_OUT:
                self._stop_for_timeout(ledger, key, folder, run)
            record = self._settled(context, ledger, key, folder)
            self._show_rest(ledger, key, folder, record, run)
            if event == TIMED_OUT:
                raise self._timed_out()
            if record.outcome is not None and record.outcome.is_cleared:  # of an earlier try, which was still ending
                return self._run(context)
            if record.outcome is not None:
                return self._result(context, folder, record.outcome, devices or [])
            if has_supervisor(folder):
                self._hand_over(run, key, folder, record, devices or [])
            raise self._lost(ledger, settings, folder)

    def _settled(self, context: Context, ledger: GangLedger, key: GangKey, folder: Path) -> ReplicaRecord:
        """Return the replica's record; of one that may just be started again, when that has happened or not."""
        is_gang = self._plan(context).is_gang
        until = time.monotonic() + RESTART_SECONDS
        while True:
            record = ledger.replicas(key)[self.replica]
            outcome = record.outcome
            is_open = outcome is not None and (outcome.cause.may_restart or (is_gang and read_verdict(folder) is None))
            if not is_open or not has_supervisor(folder) or time.monotonic() > until:
                return record
            time.sleep(LOOK_SECONDS)

    def _stop_for_timeout(self, ledger: GangLedger, key: GangKey, folder: Path, run: TaskRun) -> None:
        """Stop what still runs although its time is over, and wait for its end."""
        reason = "its task's execution_timeout is over"
        if not stop_replica(folder, self.replica, run.view, reason):
            ledger.ask_stop(key, self.replica, run.view, reason)
        until = time.monotonic() + parse_seconds(self.kill_grace_seconds) + MARGIN_SECONDS
        while ledger.replicas(key)[self.replica].outcome is None and has_supervisor(folder):
            if time.monotonic() > until:
                self.log.warning("the replica has not ended, although it was stopped")
                return
            time.sleep(LOOK_SECONDS)

    def _show_rest(self, ledger: GangLedger, key: GangKey, folder: Path, record: ReplicaRecord, run: TaskRun) -> None:
        """Show what no view and no trigger has shown: all of it, where none was on the host of the output."""
        tail = OutputTail(
            replica_folder(folder, self.replica, record.generation), self._log_output, record.log_position
        )
        tail.forward(record.attempts, final=record.outcome is not None)
        ledger.renew_view(key, self.replica, run.view, tail.position)

    def _lost(self, ledger: GangLedger, settings: Settings, folder: Path) -> SupervisorLostError:
        """Free what a dead supervisor held, and say so."""
        reclaim(ledger, settings, this_host())
        return SupervisorLostError(
            "the gang's supervisor died while this task was deferred",
            f"its log is in {folder}",
            "The next try starts the replica again from its last checkpoint.",
        )
