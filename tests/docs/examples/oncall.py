"""Callbacks of our own, beside the DAGs or in an installed package."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


# [START page]
def page(context: Mapping[str, Any], *, urgent: bool = False) -> None:
    """Wake somebody up: ``context`` is Airflow's, as for any callback."""
    print(f"{context['run_id']}: {context.get('reason') or context.get('exception')}", "now!" if urgent else "")  # noqa: T201 (an example)


# [END page]
