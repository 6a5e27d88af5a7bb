"""What a declaration may have called by name: Airflow's notifiers, and functions that were written to be called by it.

Installed packages have functions that run any command, so a function must be beside the declaration, in the folder of
DAGs or of plugins, or in a package that ``[airflow_tf] callbacks`` names. Where it was defined counts, not the name by
which it is reached.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow.sdk import BaseNotifier
from pydantic import ValidationInfo

from airflow_tf.core.templates import has_template, render
from airflow_tf.hooks.settings import callback_folders, callback_packages
from airflow_tf.pipeline.errors import suggest
from airflow_tf.pipeline.fields import refuse

_INSTALLED = frozenset({"site-packages", "dist-packages"})

_SOMETIMES = {"exception": "", "reason": ""}
"""Names that Airflow gives some calls only, as templates get them in others: a task whose process was lost has none."""


@dataclass(frozen=True)
class NamedCallback:
    """What Airflow calls with the context.

    A notifier is made anew for each call, since it renders its own fields; a function's arguments are rendered here.
    """

    name: str
    arguments: Mapping[str, Any]

    def __call__(self, context: Mapping[str, Any]) -> Any:  # noqa: ANN401  whatever the function returns
        """Call it.

        :raises TemplateError: if a template of a function's arguments cannot be rendered.
        """
        found, arguments = find_callback(self.name), copy.deepcopy(dict(self.arguments))
        known = {**_SOMETIMES, **context}
        if isinstance(found, type):
            return found(**arguments)(known)
        return found(context, **render(arguments, known, f"arguments of {self.name}"))


def check_callback(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse a callback that does not take its arguments, or would not render a template among them.

    :raises PydanticCustomError: saying what it takes.
    """
    found, rendered = find_callback(name), tuple(arguments)
    try:
        if isinstance(found, type):
            rendered = tuple(found(**copy.deepcopy(dict(arguments))).template_fields)
        else:
            inspect.signature(found).bind({}, **arguments)
    except Exception as error:
        todo = f"It is {name.rpartition('.')[2]}{inspect.signature(found)}."
        raise refuse(f"{name} does not take these arguments", str(error), todo) from error
    for key, value in arguments.items():
        if key not in rendered and has_template(value):
            todo = f"It renders: {', '.join(rendered) or 'nothing'}."
            raise refuse(f"{name} does not render templates in {key!r}", todo=todo)


def check_name(name: str, info: ValidationInfo) -> str:
    """Return the name of a callback that can be imported, and may be called."""
    found = find_callback(name)
    if not isinstance(found, type) and not _is_allowed(found.__module__, (info.context or {}).get("folder", Path())):
        why = f"{found.__module__} is neither beside this file, nor in the folder of DAGs or plugins"
        todo = "Let [airflow_tf] callbacks name its package, or write a function of your own in the folder of DAGs."
        raise refuse(f"{name} is not allowed here", why, todo)
    return name


def _is_allowed(module_name: str, beside: Path) -> bool:
    """Tell whether a declaration in the folder ``beside`` may have functions called that this module defines."""
    if any(f"{module_name}.".startswith(f"{package}.") for package in callback_packages()):
        return True
    file = getattr(sys.modules.get(module_name), "__file__", None)
    return file is not None and any(_is_own(Path(file).resolve(), folder) for folder in (beside, *callback_folders()))


def _is_own(file: Path, folder: Path) -> bool:
    """Tell whether ``file`` is below ``folder``, and not of a package installed there, as in a virtual environment."""
    folder = folder.resolve()
    return file.is_relative_to(folder) and not _INSTALLED.intersection(file.relative_to(folder).parts)


def find_callback(name: str) -> Any:  # noqa: ANN401  a notifier class, or a function
    """Import a notifier class or a function.

    :raises PydanticCustomError: if it is none, cannot be imported, or belongs to the standard library.
    """
    todo = "Give an installed package's notifier, or a function that takes Airflow's context, as module.name."
    module_name, _, attribute = name.rpartition(".")
    if not module_name:
        raise refuse(f"{name!r} is not module.name", todo=todo)
    _refuse_standard_library(name, module_name)
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise refuse(f"{module_name!r} cannot be imported", why, f"Install its package. {todo}") from error
    if attribute not in vars(module):
        raise refuse(f"{module_name} has no {attribute!r}", todo=f"{suggest(attribute, sorted(vars(module)))} {todo}")
    found = vars(module)[attribute]
    if not inspect.isfunction(found) and not (isinstance(found, type) and issubclass(found, BaseNotifier)):
        raise refuse(f"{name} is neither a notifier nor a function", todo=todo)
    _refuse_standard_library(name, found.__module__)
    return found


def _refuse_standard_library(name: str, module_name: str) -> None:
    if module_name.partition(".")[0] in sys.stdlib_module_names:
        why = "the standard library has no callbacks"
        raise refuse(f"{name} is not allowed here", why, "Write a function of your own.")
