"""Pages in Airflow's user interface: what the ledger and the run folders tell, behind Airflow's permissions."""

from __future__ import annotations

from typing import Final

PAGES_FILE: Final = "pages.js"
"""The pages themselves, beside this module; built from ``ui/`` of the project, see ``docs/adr/0019-pages-built.md``."""
