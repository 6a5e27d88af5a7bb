"""The plugin's entry point, loaded by every Airflow process, so it imports nothing heavy."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import quote

from airflow.plugins_manager import AirflowPlugin

from airflow_tf.web import PAGES_FILE

PREFIX: Final = "/airflow_tf"

_CHIP = (
    '<rect x="5" y="5" width="14" height="14" rx="2"/><rect x="9.5" y="9.5" width="5" height="5"/>'
    '<path d="M9 2v3M15 2v3M9 19v3M15 19v3M2 9h3M2 15h3M19 9h3M19 15h3"/>'
)
_CURVE = '<path d="M4 3v17h17M7 6c1 8 4 10 13 10"/>'


def _icon(drawing: str, colour: str, edge: str) -> str:
    """Return an icon as a URL; its edge makes it visible where Airflow marks the entry with a strong ground."""
    return "data:image/svg+xml," + quote(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24" fill="none" stroke-linecap="round">'
        f'<g stroke="{edge}" stroke-width="4">{drawing}</g><g stroke="{colour}" stroke-width="2">{drawing}</g></svg>'
    )


def _page(name: str, destination: str, url_route: str, drawing: str) -> dict[str, Any]:
    """Return an entry of ``react_apps``: Airflow loads the file and takes the page from the global of that name.

    The icons are part of the entry, so that nothing is fetched for them.
    """
    return {
        "name": name,
        "bundle_url": f"{PREFIX.removeprefix('/')}/{PAGES_FILE}",  # relative to where Airflow's interface is
        "destination": destination,
        "url_route": url_route,  # each must have its own: Airflow drops the second of two that are alike
        "icon": _icon(drawing, "#3d5a80", "#ffffffb0"),
        "icon_dark_mode": _icon(drawing, "#e4e4e7", "#00000000"),
    }


class AirflowTfPlugin(AirflowPlugin):
    """Registers airflow_tf with Airflow; operators and commands come from the provider info."""

    name = "airflow_tf"

    @property
    def react_apps(self) -> list[dict[str, Any]]:  # type: ignore[override] # as the applications below
        """The pages of devices and training runs."""
        return [
            _page("Devices", "nav", "tf-devices", _CHIP) | {"nav_top_level": True},
            _page("Training", "dag_run", "tf-training", _CURVE),
            _page("Training", "task_instance", "tf-training-task", _CURVE),
        ]

    @property
    def fastapi_apps(self) -> list[dict[str, Any]]:  # type: ignore[override] # only the API server asks, and pays
        """The read-only interface to devices and training runs, and the pages that show it."""
        from airflow_tf.web.app import make_app  # noqa: PLC0415 (only the API server asks)

        return [{"app": make_app(), "url_prefix": PREFIX, "name": "airflow_tf"}]
