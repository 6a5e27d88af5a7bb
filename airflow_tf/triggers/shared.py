"""What our triggers share: the ledger, asked in threads and with patience; what Airflow knows of their task."""

from __future__ import annotations

import asyncio
import functools
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import tenacity
from airflow.triggers.base import BaseTrigger

from airflow_tf.core.errors import LedgerUnavailableError
from airflow_tf.core.ledger import GangLedger
from airflow_tf.hooks.airflow_run import AWAY_SECONDS, instance_name, task_states, user_mark
from airflow_tf.hooks.settings import load_settings
from airflow_tf.hooks.staging import Log
from airflow_tf.ledger import Ledger, open_ledger

T = TypeVar("T")

LEDGER_THREADS = 4
LONGEST_PAUSE_SECONDS = 5.0
_opening = threading.Lock()


@functools.cache
def _threads() -> ThreadPoolExecutor:
    """Threads of our own: a ledger that hangs must not use up those of other triggers."""
    return ThreadPoolExecutor(LEDGER_THREADS, thread_name_prefix="airflow_tf")


@functools.cache
def _opened() -> Ledger:
    return open_ledger(load_settings())


def shared_ledger() -> Ledger:
    """Return the ledger that all triggers of this process use; blocks, so call it in a thread."""
    with _opening:
        return _opened()


async def in_thread(work: Callable[[], T]) -> T:
    """Run what may block outside the event loop."""
    return await asyncio.get_running_loop().run_in_executor(_threads(), work)


async def ask(work: Callable[[GangLedger], T], log: Log) -> T:
    """Ask the ledger; while it does not answer, ask again, with growing pauses: an outage ends no task.

    Each call ends within the ledger's own deadline.
    """
    retries = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type(LedgerUnavailableError),
        wait=tenacity.wait_random_exponential(max=LONGEST_PAUSE_SECONDS),
        before_sleep=lambda state: _tell_once(state, log),
    )
    return await retries(in_thread, lambda: work(shared_ledger()))


async def late_enough(since: float) -> None:
    """Wait until a trigger that began at ``since`` may fire.

    :param since: by the monotonic clock.
    """
    await asyncio.sleep(max(0.0, since + AWAY_SECONDS - time.monotonic()))


def _tell_once(state: tenacity.RetryCallState, log: Log) -> None:
    if state.attempt_number == 1 and state.outcome is not None:
        log.warning("%s", state.outcome.exception())


async def user_mark_of(trigger: BaseTrigger) -> str:
    """Return what a user did with the trigger's task, in words; empty if Airflow only gave it to another triggerer."""
    ti: Any = trigger.task_instance
    states = await in_thread(lambda: task_states(ti.dag_id, ti.run_id, ti.task_id))
    return user_mark(states.get(instance_name(ti.task_id, ti.map_index)), "deferred")
