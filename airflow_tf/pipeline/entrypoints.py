"""Whether ``module:function`` is there, by the module's source: importing it would import TensorFlow.

This is asked by commands, not when Airflow parses the DAG: that may happen on a host without the training packages.
"""

from __future__ import annotations

import ast
import importlib.machinery
import sys
from collections.abc import Iterator
from pathlib import Path

from airflow_tf.pipeline.declaration import Loaded
from airflow_tf.pipeline.errors import DataPath, Problem, suggest

_ANY = "*"
"""Stands for names that the source does not tell: of a star import, or of a module's ``__getattr__``."""


def missing_functions(loaded: Loaded) -> list[Problem]:
    """Return the entrypoints ``module:function`` that are not there, in the declaration's folder or on this host.

    Modules of another training interpreter, on a ``PYTHONPATH`` of the program's own, or in a zip file: nobody looks.
    """
    train, evaluate, export = (
        loaded.declaration.train,
        loaded.declaration.evaluate,
        loaded.declaration.checkpoints.export,
    )
    folder = loaded.document.file.absolute().parent if train.code is None else Path(train.code)
    if train.python is not None or "PYTHONPATH" in train.environment or not folder.is_dir():
        return []
    given: list[tuple[DataPath, str]] = [(("train",), train.entrypoint)]
    given += [(("evaluate",), evaluate.entrypoint)] if evaluate else []
    given += [(("checkpoints", "export"), export.entrypoint)] if export else []
    problems = []
    for section, entrypoint in given:
        path: DataPath = (*section, "entrypoint")
        if ":" in entrypoint and not entrypoint.endswith(".py"):
            problems += [
                Problem(loaded.document.locate(path), path, what, todo=todo)
                for what, todo in _missing(entrypoint, folder)
            ]
    return problems


def _missing(entrypoint: str, folder: Path) -> Iterator[tuple[str, str]]:
    module, _, function = entrypoint.partition(":")
    spec = _find(module, [str(folder), *sys.path])
    if spec is None:
        yield f"no module {module!r} in {folder} or among this host's packages", "Correct it, or install the package."
    elif spec.origin and spec.origin.endswith(".py"):
        try:
            names = set(_names(ast.parse(Path(spec.origin).read_bytes()).body))
        except SyntaxError as error:
            yield f"{spec.origin}:{error.lineno}: {error.msg}", "Correct the program."
            return
        if function not in names and not names & {_ANY, "__getattr__"}:
            todo = f"{suggest(function, sorted(names))} Give a function that the module has.".strip()
            yield f"module {module!r} has no function {function!r}", todo


def _find(module: str, places: list[str]) -> importlib.machinery.ModuleSpec | None:
    """Find a module as an import would, without importing the packages it is in."""
    found: importlib.machinery.ModuleSpec | None = None
    whole = ""
    for part in module.split("."):
        whole = f"{whole}.{part}" if whole else part
        found = importlib.machinery.PathFinder.find_spec(whole, places)
        if found is None:
            return None
        places = list(found.submodule_search_locations or [])
    return found


def _names(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that statements bind in their module."""
    for statement in body:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield statement.name
        elif isinstance(statement, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in statement.names)
        else:
            yield from (
                node.id
                for node in ast.walk(statement)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            )
            for block in ("body", "orelse", "finalbody"):
                yield from _names(getattr(statement, block, []))
            for handler in getattr(statement, "handlers", []):
                yield from _names(handler.body)
