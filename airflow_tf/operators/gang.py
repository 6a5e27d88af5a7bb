"""What the operators that run replicas share: settings, ledger, devices, waiting, and Airflow's exceptions."""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from airflow.sdk import Context
from airflow.sdk.exceptions import AirflowException, AirflowFailException, AirflowRescheduleException

from airflow_tf.core.devices import DeviceRequest, Member
from airflow_tf.core.errors import AirflowTfError, DevicesBusyError, LedgerError
from airflow_tf.core.identity import GangKey
from airflow_tf.core.ledger import GangLedger, Refused, Turn
from airflow_tf.core.settings import Settings
from airflow_tf.hooks.airflow_run import AWAY_SECONDS, TaskRun
from airflow_tf.hooks.staging import Log
from airflow_tf.supervisor.acquire import acquire, usable_members
from airflow_tf.supervisor.client import has_supervisor

LOOK_SECONDS = 5.0


@contextlib.contextmanager
def airflow_errors() -> Iterator[None]:
    """Turn our errors into Airflow's: what a retry cannot help fails at once."""
    try:
        yield
    except AirflowTfError as error:
        if error.retryable:
            raise AirflowException(str(error)) from error
        raise AirflowFailException(str(error)) from error


def check_ledger(context: Context, run: TaskRun, ledger_id: str) -> None:
    """Check that the devices of this task are looked for where a sensor of this run has reserved them.

    :raises LedgerError: if that sensor uses another ledger.
    """
    sensors = [task.task_id for task in context["dag"].tasks if getattr(task, "for_task", None) == run.task_id]
    for sensor in () if run.is_alone else sensors:
        reserved = context["ti"].xcom_pull(task_ids=sensor)
        theirs = reserved.get("ledger_id", ledger_id) if isinstance(reserved, dict) else ledger_id
        if theirs != ledger_id:
            raise LedgerError(
                f"sensor {sensor!r} reserved devices in ledger {theirs}, but this task uses ledger {ledger_id}",
                "they run with different settings or on different hosts",
                "Give all workers the same [airflow_tf] ledger_url; several hosts need PostgreSQL.",
            )


@dataclass(frozen=True, slots=True)
class DeviceClaim:
    """A replica's way to its devices: the sensor's reservation, or one of its own."""

    ledger: GangLedger
    settings: Settings
    key: GangKey
    request: DeviceRequest
    turn: Turn
    run: TaskRun
    log: Log
    timeout_seconds: float
    gang_folder: Path

    def members(self, replica: int, replicas: Sequence[int]) -> tuple[Member, ...]:
        """Return the devices of ``replicas``, waiting for them as ``replica`` where no reservation is left.

        Under an executor no slot is held: the task is rescheduled. Inside a command it waits here.

        :raises DevicesNeverFitError: if no wait can help.
        :raises DevicesBusyError: at the deadline, naming the holders.
        """
        supervised = has_supervisor(self.gang_folder)
        found = usable_members(self.ledger, self.settings, self.key, replicas, is_supervised=supervised)
        if found is not None:
            return found
        while True:
            answer = acquire(self.ledger, self.settings, self.key, self.request, replicas, self.turn)
            if not isinstance(answer, Refused):
                return tuple(member for member in answer.members if member.replica in replicas)
            self.wait(replica, str(answer))

    def wait(self, replica: int, why: str) -> None:
        """Wait until it is worth looking again: here inside a command, else by a reschedule.

        :raises DevicesBusyError: if the deadline has passed.
        """
        waited = self.ledger.seconds_waiting(self.key, replica, self.run.view)
        self.log.info("replica %s waits for devices: %s", replica, why)
        if waited > self.timeout_seconds:
            raise DevicesBusyError(
                f"no device for replica {replica} within {self.timeout_seconds:.0f} s",
                why,
                "Wait for the holders, 'airflow tf cancel' one of them, or raise devices.timeout.",
            )
        if self.run.in_process:
            time.sleep(LOOK_SECONDS)
            return
        later = dt.datetime.now(tz=dt.UTC) + dt.timedelta(seconds=AWAY_SECONDS)
        raise AirflowRescheduleException(later)  # type: ignore[no-untyped-call]
