"""Spans and metrics of what our tasks do, through Airflow's own OpenTelemetry or StatsD, where that is switched on.

Span ``airflow_tf.<step>``, timing ``airflow_tf.<step>.duration`` and counters ``airflow_tf.<step>.<amount>``, with the
tags ``dag_id`` and ``task_id``; the timing also has the ``outcome``: ``done``, ``skipped``, ``waiting`` (given back to
the scheduler or the triggerer) or ``failed``.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import time
from collections.abc import Iterator, Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowRescheduleException, AirflowSkipException, TaskDeferred
from airflow.sdk.observability import stats
from opentelemetry import trace

_TRACER = trace.get_tracer("airflow_tf")
_WAITING = (AirflowRescheduleException, TaskDeferred)


class Step:
    """One step of a task, while it is measured."""

    def __init__(self, name: str, span: trace.Span, tags: Mapping[str, str]) -> None:
        self._name = name
        self._span = span
        self._tags = dict(tags)

    def tell(self, **attributes: str | float) -> None:
        """Note on the span what is special of this step."""
        self._span.set_attributes(attributes)

    def count(self, **amounts: int) -> None:
        """Add to counters, and note the amounts on the span."""
        self._span.set_attributes(amounts)
        for amount, value in amounts.items():
            stats.incr(f"airflow_tf.{self._name}.{amount}", value, tags=self._tags)


@contextlib.contextmanager
def measured(name: str, context: Mapping[str, Any]) -> Iterator[Step]:
    """Measure a step of the task of ``context``; an error of it is noted on the span."""
    ti = context["ti"]
    tags = {"dag_id": ti.dag_id, "task_id": ti.task_id}
    about = tags | {"run_id": ti.run_id, "map_index": -1 if ti.map_index is None else ti.map_index}
    start, outcome = time.monotonic(), "failed"
    with _TRACER.start_as_current_span(
        f"airflow_tf.{name}", attributes=about, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield Step(name, span, tags)
            outcome = "done"
        except _WAITING:
            outcome = "waiting"
            raise
        except AirflowSkipException:
            outcome = "skipped"
            raise
        except BaseException as error:
            span.set_status(trace.StatusCode.ERROR, str(error))
            raise
        finally:
            span.set_attribute("outcome", outcome)
            seconds = dt.timedelta(seconds=time.monotonic() - start)
            stats.timing(f"airflow_tf.{name}.duration", seconds, tags=tags | {"outcome": outcome})
