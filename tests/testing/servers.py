"""Waiting for servers, and finding what is left of them."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psutil


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def servers_of(folder: Path) -> list[int]:
    return [p.pid for p in psutil.process_iter(["cmdline"]) if any(str(folder) in a for a in p.info["cmdline"] or ())]
