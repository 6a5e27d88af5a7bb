"""Callbacks as an installation may provide them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from typing import Any

from airflow.sdk import BaseNotifier

CALLS: list[tuple[str, Any]] = []
run = subprocess.run  # what is imported from elsewhere belongs there
system = os.system
SETTING = 3


def page(context: Mapping[str, Any], urgent: object = False) -> None:
    CALLS.append((context["run_id"], urgent))


class Told(BaseNotifier):
    template_fields = ("text",)

    def __init__(self, text: str, title: object = None) -> None:
        super().__init__()
        self.text = text
        self.title = title

    def notify(self, context: Any) -> None:
        CALLS.append((context["run_id"], self.text))


class Other:
    pass
