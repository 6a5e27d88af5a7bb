"""Wait until enough devices are free, and reserve exactly those."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, ClassVar, NoReturn

from airflow.configuration import conf
from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue
from airflow.sdk.exceptions import (
    AirflowException,
    AirflowFailException,
    AirflowRescheduleException,
    AirflowSensorTimeout,
    AirflowSkipException,
    TaskDeferralTimeout,
    TaskDeferred,
)

from airflow_tf.core.errors import AirflowTfError, LedgerUnavailableError
from airflow_tf.core.ledger import Granted, Refused
from airflow_tf.core.states import MemberState
from airflow_tf.hooks.airflow_run import TaskRun, runs_in_process
from airflow_tf.hooks.devices import DEVICE_FIELDS, DeviceSeeker, read_count
from airflow_tf.hooks.hdfs import HdfsHook
from airflow_tf.hooks.mapping import literal_replicas
from airflow_tf.hooks.settings import load_settings
from airflow_tf.hooks.telemetry import measured
from airflow_tf.ledger import open_ledger
from airflow_tf.storage.client import check_destination
from airflow_tf.supervisor.acquire import acquire
from airflow_tf.triggers.devices import LONGEST_WAIT_SECONDS, DevicesTrigger

DEFERRAL_MARGIN_SECONDS = 30.0
"""Airflow ends a deferral by itself so long after the sensor's own deadline: where no triggerer runs."""

SHORTEST_LOOK_SECONDS = 10.0
"""A waiter keeps its place for three times as long: Airflow may take some seconds to start its next look."""

_SOFT = (AirflowSensorTimeout, AirflowFailException, AirflowSkipException)


class DeviceAvailabilitySensor(DeviceSeeker, BaseSensorOperator):
    """Wait until the replicas of a training task can all have their devices, and reserve those for them.

    All or nothing: while it waits it holds no device, so two runs never hold half of what each needs. The
    reservation is kept in the ledger, where the training task finds it; it expires if that task does not come.
    A request that this host can never satisfy fails at once.

    :param for_task: id of the training task that the devices are for.
    :param count: number of replicas; by default the number of literal mapped instances of ``for_task``. Replicas are
        numbered from 0.
    :param publish: ``{"destination": base URI, "hdfs_conn_id": …}`` of the publication at the end of the run: what
        makes it impossible is found now, not after the training.
    :param kwargs: what is asked of the devices: see :class:`airflow_tf.hooks.devices.DeviceSeeker`.
    :param hold: False gives the devices back at once: for trials of a sweep, which take their turns by themselves, it
        says when the first one could begin, and fails at once where none ever can.
    :param deferrable: wait in the triggerer, which asks only the ledger: each look at the devices is a short task on a
        worker. Inside ``dags test`` and ``tasks test`` it waits in place.
    :return: XCom ``{"reservation_id", "ledger_id", "devices": {replica: [uuid, …]}}``.
    """

    template_fields: Sequence[str] = ("count", "publish", *DEVICE_FIELDS)
    template_fields_renderers: ClassVar[dict[str, str]] = {}
    ui_color = "#9fd3c7"

    def __init__(
        self,
        *,
        for_task: str,
        count: int | str | None = None,
        publish: Mapping[str, str | None] | None = None,
        hold: bool = True,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.for_task = for_task
        self.count = count
        self.publish = publish
        self.hold = hold
        self.deferrable = deferrable
        self._refused: Refused | None = None
        self._is_waiting = False

    def execute(self, context: Context) -> Any:  # noqa: ANN401 (Airflow's signature)
        """Look until the devices are reserved or the time is over; then say who holds them."""
        with measured("reserve", context), self._queue_left(context):
            if self.publish is not None:
                self._check_publication(TaskRun.from_context(context), self.publish)
            if self.deferrable and not runs_in_process():
                return self.look(context)
            return super().execute(context)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:  # noqa: ANN401 (Airflow's signature)
        """Look again after a deferral; a last time after one that Airflow ended at its limit."""
        with measured("reserve", context), self._queue_left(context):
            try:
                return super(BaseSensorOperator, self).resume_execution(next_method, next_kwargs, context)
            except TaskDeferralTimeout:
                done = self.poke(context)
                if not done.is_done:
                    raise
                return done.xcom_value

    def _check_publication(self, run: TaskRun, publish: Mapping[str, str | None]) -> None:
        """Refuse a destination to which nothing can be published; asked once in a run on this host.

        A file system that does not answer now may do so when the training has ended.

        :raises AirflowFailException: saying why.
        """
        base, note = str(publish["destination"]), run.folders(load_settings()).root / "destination_checked"
        if note.exists() and note.read_text(encoding="utf-8") == base:
            return
        try:
            check_destination(base, options=HdfsHook(publish.get("hdfs_conn_id")).storage_options(base))
        except AirflowTfError as error:
            if not error.retryable:
                raise AirflowFailException(f"The result of this run could not be published. {error}") from error
            self.log.warning("whether the result of this run can be published is not known: %s", error)
            return
        note.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        note.write_text(base, encoding="utf-8")

    def look(self, context: Context, event: str | None = None) -> Any:  # noqa: ANN401 (Airflow's type of an XCom)
        """Try to reserve once; wait in the triggerer if that is refused.

        :param event: why the trigger fired.
        """
        if event is not None:
            self.log.info("looking again: %s", event)
        done = self.poke(context)
        return done.xcom_value if done.is_done else self._defer(context)

    def _defer(self, context: Context) -> NoReturn:
        """Wait in the triggerer for what is left of the time, counted by the ledger since the first look.

        :raises AirflowSensorTimeout: if nothing is left.
        """
        with contextlib.closing(open_ledger(load_settings())) as ledger:
            key = TaskRun.from_context(context).gang(ledger.ledger_id, self.for_task)
            waiting = ledger.look(key)
        waited_seconds = waiting.waited_seconds if waiting is not None else 0.0
        left_seconds = self.timeout - waited_seconds
        if left_seconds <= 0:
            raise AirflowSensorTimeout(f"Sensor has timed out after {waited_seconds:.0f} s of {self.timeout:.0f} s.")
        self.defer(
            trigger=DevicesTrigger(key.to_json(), min(left_seconds, LONGEST_WAIT_SECONDS)),
            method_name=self.look.__name__,
            timeout=timedelta(seconds=left_seconds + DEFERRAL_MARGIN_SECONDS),
        )

    @contextlib.contextmanager
    def _queue_left(self, context: Context) -> Iterator[None]:
        """Leave the queue when the wait ends without devices, whatever ends it; name the holders at a deadline."""
        self._is_waiting = True
        try:
            yield
        except (TaskDeferred, AirflowRescheduleException):
            raise
        except BaseException as error:
            self._is_waiting = False
            self._withdraw(context)
            self._tell_end(AirflowSensorTimeout(str(error)) if isinstance(error, TaskDeferralTimeout) else error)
            raise
        finally:
            self._is_waiting = False

    def _tell_end(self, error: BaseException) -> None:
        """Raise what ended the wait as Airflow takes it from a sensor, with the last refusal."""
        cause = error.__cause__ if isinstance(error, AirflowSkipException) else None
        words = " ".join(str(part) for part in (cause or error, self._refused) if part is not None)
        if (self.soft_fail and isinstance(error, _SOFT)) or (self.never_fail and isinstance(error, Exception)):
            raise AirflowSkipException(words) from error
        if isinstance(error, AirflowSensorTimeout | AirflowSkipException):
            raise type(error)(words) from error

    def _withdraw(self, context: Context) -> None:
        try:
            with contextlib.closing(open_ledger(load_settings())) as ledger:
                ledger.withdraw(TaskRun.from_context(context).gang(ledger.ledger_id, self.for_task))
        except AirflowTfError as error:  # what ended the wait is told, not this: a silent waiter is forgotten soon
            self.log.warning("not taken out of the queue: %s", error)

    def on_kill(self) -> None:
        """End the wait, so that the gang leaves the queue; runs in a signal handler, which must not use the ledger."""
        if self._is_waiting:
            raise AirflowException(f"the wait of task {self.task_id} for devices was ended by a signal")

    def poke(self, context: Context) -> PokeReturnValue:
        """Try to reserve once.

        :raises AirflowFailException: if waiting cannot help.
        """
        try:
            answer, ledger_id = self._try_reserve(context)
        except LedgerUnavailableError as error:  # no answer is no failure: the next look, or the timeout, ends the wait
            self.log.warning("%s", error)
            return PokeReturnValue(is_done=False)
        except AirflowTfError as error:
            if error.retryable:
                raise
            raise AirflowFailException(str(error)) from error
        if isinstance(answer, Refused):
            self._refused = answer
            self.log.info("%s", answer)
            return PokeReturnValue(is_done=False)
        return PokeReturnValue(is_done=True, xcom_value=self._xcom(answer, ledger_id))

    def _try_reserve(self, context: Mapping[str, Any]) -> tuple[Granted | Refused, str]:
        replicas = self._replicas(context)
        request = self.device_request()
        settings = load_settings()
        ledger = open_ledger(settings)
        try:
            key = TaskRun.from_context(context).gang(ledger.ledger_id, self.for_task)
            # A deferred waiter is renewed by its trigger; where that is gone, it stands in nobody's way for long.
            look_seconds = SHORTEST_LOOK_SECONDS if self.deferrable else max(self.poke_interval, SHORTEST_LOOK_SECONDS)
            turn = self.turn(look_seconds)
            answer = acquire(ledger, settings, key, request, replicas, turn)
            if isinstance(answer, Granted) and not self.hold:
                for member in answer.members:
                    if member.state == MemberState.RESERVED:  # what a supervisor has confirmed is in use
                        ledger.release(member)
            return answer, ledger.ledger_id
        finally:
            ledger.close()

    def _replicas(self, context: Mapping[str, Any]) -> Sequence[int]:
        """Return the numbers of the replicas, as counted or as the training task is mapped."""
        if self.count is not None:
            return range(read_count(self.count, "count"))
        return literal_replicas(context["dag"], self.for_task)

    def _xcom(self, granted: Granted, ledger_id: str) -> dict[str, Any]:
        devices = {str(member.replica): [device.uuid for device in member.devices] for member in granted.members}
        for replica, uuids in devices.items():
            got = "gets" if self.hold else "could have"
            self.log.info("%s[%s] %s %s", self.for_task, replica, got, ", ".join(uuids) or "no device")
        return {"reservation_id": granted.reservation_id, "ledger_id": ledger_id, "devices": devices}
