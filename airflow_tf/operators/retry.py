"""Whether another try of a task may help, by the class of its failure: Airflow asks when a try has failed."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from typing import Any

import jinja2
from airflow.sdk import Context, RetryDecision, RetryPolicy
from airflow.sdk.exceptions import AirflowException

from airflow_tf.core.errors import AirflowTfError
from airflow_tf.core.states import ExitCause
from airflow_tf.hooks.airflow_run import without_date

_AT_ONCE = {
    ExitCause.DEVICE_LOST: "the device was lost: the next try takes another one",
    ExitCause.PREEMPTED: "the host was taken away: the next try goes on from the last checkpoint",
}
"""Causes after which there is nothing to wait for."""


class ReplicaEndedError(AirflowException):
    """A replica ended without success, and another try may end otherwise.

    :param cause: why it ended.
    """

    def __init__(self, text: str, cause: ExitCause) -> None:
        super().__init__(text)
        self.cause = cause


class FailureClassPolicy(RetryPolicy):
    """Retry what another try may cure, as often as the task's ``retries`` allow, and fail at once what none can.

    A lost device or a host that was taken away: another try at once, on other devices, from the last checkpoint. A
    wrong declaration, template, input or program: none. Everything else: as the task's ``retries`` and ``retry_delay``
    say. Training and evaluation tasks have it unless they are given another; a task of one's own that calls this
    package's hooks may have it too: ``retry_policy=FailureClassPolicy()``.
    """

    def evaluate(
        self,
        exception: BaseException,
        try_number: int,  # noqa: ARG002 (given by Airflow)
        max_tries: int,  # noqa: ARG002 (given by Airflow)
        context: Context | None = None,  # noqa: ARG002 (given by Airflow)
    ) -> RetryDecision:
        """Decide by the exception, or by the one that it was made of."""
        for error in _chain(exception):
            if isinstance(error, ReplicaEndedError) and error.cause in _AT_ONCE:
                return RetryDecision.retry(dt.timedelta(0), _AT_ONCE[error.cause])
            if isinstance(error, AirflowTfError):
                return RetryDecision.default() if error.retryable else RetryDecision.fail(str(error))
            if isinstance(error, jinja2.TemplateError):
                return RetryDecision.fail(f"a template is wrong: {error}. {without_date(error)}".rstrip())
        return RetryDecision.default()

    def serialize(self) -> dict[str, Any]:
        """Return what Airflow stores of it."""
        return {"__type": f"{type(self).__module__}.{type(self).__qualname__}"}

    @classmethod
    def deserialize(cls, data: dict[str, Any]) -> FailureClassPolicy:  # noqa: ARG003 (it has no settings)
        """Return it."""
        return cls()


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__
