"""Configuration of Sphinx; the pages are Markdown (MyST)."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from generate import DOCS, write, write_schema  # beside this file

SCHEMA = DOCS / "_build" / "declaration.schema.json"
write()
write_schema(SCHEMA)

project = "airflow_tf"
copyright = "the authors of airflow_tf"  # noqa: A001 - Sphinx's own name
version = release = installed_version("airflow-tf")

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
html_extra_path = [str(SCHEMA)]
html_theme = "furo"
html_title = f"airflow_tf {version}"
