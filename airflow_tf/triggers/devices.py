"""Keeps a gang's place in the queue while its sensor is deferred, and wakes it when a look is worth while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_tf.core.identity import GangKey
from airflow_tf.triggers.shared import ask, late_enough, user_mark_of

RENEW_SECONDS = 5.0
LONGEST_WAIT_SECONDS = 60.0
"""The sensor looks for itself at least so often: the ledger does not learn when a foreign process ends."""


class DevicesTrigger(BaseTrigger):
    """Renew a waiting gang in the ledger; fire when enough devices seem free for it, or after ``wait_seconds``.

    It never probes: the devices may be on another host.

    :param gang: the waiting gang's key, as JSON.
    :param wait_seconds: longest time until it fires.
    """

    def __init__(self, gang: dict[str, Any], wait_seconds: float = LONGEST_WAIT_SECONDS) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.gang = gang
        self.wait_seconds = wait_seconds

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments as plain JSON."""
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            "gang": self.gang,
            "wait_seconds": self.wait_seconds,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Fire once, with why; the task looks for itself."""
        began = time.monotonic()
        try:
            async with asyncio.timeout(self.wait_seconds):
                await self._until_promising()
        except TimeoutError:
            why = "time for a look"
        else:
            why = "devices seem free"
        await late_enough(began)
        yield TriggerEvent(why)  # type: ignore[no-untyped-call]

    async def _until_promising(self) -> None:
        key = GangKey(**self.gang)
        while True:
            await asyncio.sleep(RENEW_SECONDS)  # the sensor has just looked
            waiting = await ask(lambda ledger: ledger.look(key), self.log)
            if waiting is None or waiting.is_promising:
                return

    async def on_kill(self) -> None:
        """Leave the queue: a user ended the wait. Airflow also calls this where another triggerer takes over."""
        if await user_mark_of(self):
            await ask(lambda ledger: ledger.withdraw(GangKey(**self.gang)), self.log)
