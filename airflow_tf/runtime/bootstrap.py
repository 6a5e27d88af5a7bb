"""Start a module of :mod:`airflow_tf.runtime` in a training interpreter in which airflow_tf is not installed.

Run as a script: ``python bootstrap.py zygote|replica …``. Only this package is made importable, by its location; the
site-packages of Airflow's environment stay out of the training interpreter.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path


def expose_package(root: Path) -> None:
    """Make the package at ``root`` importable under its name, whatever ``sys.path`` says."""
    spec = importlib.util.spec_from_file_location(
        root.name, root / "__init__.py", submodule_search_locations=[str(root)]
    )
    if spec is None or spec.loader is None:
        raise ImportError(f"{root} is not a package")
    module = importlib.util.module_from_spec(spec)
    sys.modules[root.name] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    sys.path.pop(0)
    expose_package(Path(__file__).resolve().parents[1])
    name = sys.argv[1]
    sys.argv = [f"airflow_tf.runtime.{name}", *sys.argv[2:]]
    importlib.import_module(f"airflow_tf.runtime.{name}").main()
