"""Configuration of Sphinx; the pages are Markdown (MyST)."""

from __future__ import annotations

import sys
from importlib.metadata import version as installed_version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from generate import write  # beside this file

write()

project = "airflow_tf"
copyright = "the authors of airflow_tf"  # noqa: A001 - Sphinx's own name
version = release = installed_version("airflow-tf")

extensions = ["myst_parser"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3
html_extra_path = ["reference/declaration.schema.json"]
html_theme = "furo"
html_title = f"airflow_tf {version}"
