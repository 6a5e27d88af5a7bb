"""Wait until enough devices are free, and reserve exactly those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from airflow.sdk import BaseSensorOperator, Context, PokeReturnValue
from airflow.sdk.exceptions import AirflowFailException, AirflowSensorTimeout, AirflowSkipException

from airflow_tf.core.errors import AirflowTfError, LedgerUnavailableError
from airflow_tf.core.ledger import Granted, Refused
from airflow_tf.hooks.airflow_run import TaskRun
from airflow_tf.hooks.devices import DEVICE_FIELDS, DeviceSeeker, read_count
from airflow_tf.hooks.mapping import literal_replicas
from airflow_tf.hooks.settings import load_settings
from airflow_tf.ledger import open_ledger
from airflow_tf.supervisor.acquire import acquire


class DeviceAvailabilitySensor(DeviceSeeker, BaseSensorOperator):
    """Wait until the replicas of a training task can all have their devices, and reserve those for them.

    All or nothing: while it waits it holds no device, so two runs never hold half of what each needs. The
    reservation is kept in the ledger, where the training task finds it; it expires if that task does not come.
    A request that this host can never satisfy fails at once.

    :param for_task: id of the training task that the devices are for.
    :param count: number of replicas; by default the number of literal mapped instances of ``for_task``. Replicas are
        numbered from 0.
    :param kwargs: what is asked of the devices: see :class:`airflow_tf.hooks.devices.DeviceSeeker`.
    :return: XCom ``{"reservation_id", "ledger_id", "devices": {replica: [uuid, …]}}``.
    """

    template_fields: Sequence[str] = ("count", *DEVICE_FIELDS)
    template_fields_renderers: ClassVar[dict[str, str]] = {}
    ui_color = "#9fd3c7"

    def __init__(
        self,
        *,
        for_task: str,
        count: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.for_task = for_task
        self.count = count
        self._refused: Refused | None = None

    def execute(self, context: Context) -> Any:  # noqa: ANN401 (Airflow's signature)
        """Look until the devices are reserved or the time is over; then say who holds them."""
        try:
            return super().execute(context)
        except (AirflowSensorTimeout, AirflowSkipException) as error:
            if self._refused is None:
                raise
            raise type(error)(f"{error} {self._refused}") from error

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
            return acquire(ledger, settings, key, request, replicas), ledger.ledger_id
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
            self.log.info("%s[%s] gets %s", self.for_task, replica, ", ".join(uuids) or "no device")
        return {"reservation_id": granted.reservation_id, "ledger_id": ledger_id, "devices": devices}
