"""Gangs for tests; their supervisors end with them."""

from __future__ import annotations

import dataclasses
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_tf.core.settings import Settings
from tests.supervisor.harness import Gang, kill


@pytest.fixture
def make_gang(no_processes_left: None, settings: Settings, tmp_path: Path) -> Iterator[Callable[..., Gang]]:
    """Make gangs whose supervisors are asked to end after the test: one with tries left lingers for a minute."""
    gangs: list[Gang] = []

    def make(**options: Any) -> Gang:
        slots = max(settings.cpu_slots, options.get("count", 1))
        gangs.append(Gang(dataclasses.replace(settings, cpu_slots=slots), tmp_path, **options))
        return gangs[-1]

    yield make
    for gang in gangs:
        pid = gang.supervisor_pid()
        if pid is not None:
            kill(pid, signal.SIGTERM)
