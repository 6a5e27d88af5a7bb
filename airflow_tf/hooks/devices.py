"""How tasks say which devices they want: one set of arguments for the sensor and for the operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from airflow.sdk import BaseOperator

from airflow_tf.core.devices import DeviceRequest
from airflow_tf.core.errors import TemplateError
from airflow_tf.core.ledger import Turn
from airflow_tf.core.matching import WHOLE_PERCENT
from airflow_tf.core.templates import coerce
from airflow_tf.core.units import parse_bytes, parse_percent, parse_seconds, parse_share, parse_whole

DEVICE_FIELDS = (
    "kind",
    "per_replica",
    "min_free_memory",
    "max_utilization",
    "names",
    "uuids",
    "share",
    "per_host",
    "priority",
    "time_limit",
)
"""The arguments of :class:`DeviceSeeker`; all are template fields."""

_SHORTEST_LOOK_SECONDS = 1.0

N = TypeVar("N", int, float)


class DeviceSeeker(BaseOperator):
    """A task that asks for devices.

    :param kind: ``auto``, ``gpu``, ``static`` or ``cpu``; ``auto`` never falls from gpu to cpu by itself.
    :param per_replica: devices of each replica.
    :param min_free_memory: free memory that each device must have, like ``10GiB``; devices that do not report their
        memory are not held to it. Of a shared device, the replica's part must be as large.
    :param max_utilization: largest utilization of a device in percent, like ``20`` or ``20%``, at the moment of the
        look; devices that do not report it are not held to it.
    :param names: shell patterns like ``*A100*``, of which the name of a device must match one.
    :param uuids: the only devices to take, as a list or as text with commas.
    :param share: part of each device, like ``0.5``; other replicas that share may have the rest. On GPUs the session
        config then limits the memory to that part.
    :param per_host: most devices of one host that the replicas may hold together.
    :param priority: place in the queue: the higher the earlier.
    :param time_limit: longest time for which the devices will be held, like ``2h``: others may be let pass if that
        delays nobody.
    """

    def __init__(  # noqa: PLR0913 (the declaration's devices section, one argument per key)
        self,
        *,
        kind: str = "auto",
        per_replica: int | str = 1,
        min_free_memory: int | str = 0,
        max_utilization: int | str | None = None,
        names: Sequence[str] | str | None = None,
        uuids: Sequence[str] | str | None = None,
        share: float | str = 1,
        per_host: int | str | None = None,
        priority: int | str = 0,
        time_limit: float | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.kind = kind
        self.per_replica = per_replica
        self.min_free_memory = min_free_memory
        self.max_utilization = max_utilization
        self.names = names
        self.uuids = uuids
        self.share = share
        self.per_host = per_host
        self.priority = priority
        self.time_limit = time_limit

    def device_request(self) -> DeviceRequest:
        """Return what is asked of the devices, from the rendered fields.

        :raises TemplateError: if a field cannot be read.
        """
        return DeviceRequest(
            kind=str(self.kind).strip(),
            per_replica=read_count(self.per_replica, "per_replica"),
            min_free_bytes=_read("min_free_memory", parse_bytes, self.min_free_memory) or 0,
            names=_texts(self.names, "names"),
            uuids=_texts(self.uuids.split(",") if isinstance(self.uuids, str) else self.uuids, "uuids"),
            max_utilization_percent=_read("max_utilization", parse_percent, self.max_utilization),
            share_percent=_read("share", parse_share, self.share) or WHOLE_PERCENT,
            per_host=None if self.per_host is None else read_count(self.per_host, "per_host"),
        )

    def turn(self, look_seconds: float) -> Turn:
        """Return the place in the queue that the rendered fields ask for.

        :param look_seconds: time between two looks of this task.
        :raises TemplateError: if a field cannot be read.
        """
        limit_seconds = _read("time_limit", parse_seconds, self.time_limit)
        longest = self.execution_timeout
        if limit_seconds is not None and longest is not None and limit_seconds > longest.total_seconds():
            self.log.warning("time_limit %s is longer than execution_timeout %s", self.time_limit, longest)
        return Turn(
            _read("priority", parse_whole, self.priority) or 0, limit_seconds, max(look_seconds, _SHORTEST_LOOK_SECONDS)
        )


def _read(name: str, parse: Callable[[Any], N], value: Any) -> N | None:  # noqa: ANN401 (whatever a template rendered to)
    """Return what ``parse`` makes of a rendered field; None of a field that is not given.

    :raises TemplateError: naming the field.
    """
    try:
        return None if value is None else parse(value)
    except TemplateError as error:
        raise TemplateError(f"{name}: {error.what}", error.why, error.todo) from error


def read_count(value: Any, name: str) -> int:  # noqa: ANN401 (whatever a template rendered to)
    """Return a rendered number of at least 1.

    :raises TemplateError: if it is not one.
    """
    number = int(coerce(value, "int", name))
    if number < 1:
        raise TemplateError(f"{name}: {number} is too small", todo="Give 1 or more.")
    return number


def _texts(value: Any, name: str) -> tuple[str, ...]:  # noqa: ANN401 (whatever a template rendered to)
    if value is None:
        return ()
    given = [value] if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or not all(isinstance(item, str) for item in given):
        raise TemplateError(f"{name}: {value!r} is not a list of texts")
    found = tuple(text for item in given if (text := item.strip()))
    if not found:
        raise TemplateError(f"{name}: {value!r} names nothing", todo="Leave it out to allow every device.")
    return found
