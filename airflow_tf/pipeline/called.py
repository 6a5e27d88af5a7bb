"""What a declaration may have called by name: Airflow's notifiers, or functions that the installation provides.

It may name them and give them plain values, no more: what is neither a notifier nor a function of an installed module
is refused, and so is the standard library, whose functions could run anything.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from airflow.sdk import BaseNotifier

from airflow_tf.pipeline.errors import suggest
from airflow_tf.pipeline.fields import refuse


@dataclass(frozen=True)
class NamedCallback:
    """What Airflow calls with the context. A notifier is made anew for each call, since it renders its own fields."""

    name: str
    arguments: Mapping[str, Any]

    def __call__(self, context: Mapping[str, Any]) -> Any:  # noqa: ANN401  whatever the function returns
        """Call it."""
        found, arguments = find_callback(self.name), copy.deepcopy(dict(self.arguments))
        if isinstance(found, type):
            return found(**arguments)(context)
        return found(context, **arguments)


def check_callback(name: str, arguments: Mapping[str, Any]) -> None:
    """Refuse a callback that does not take its arguments.

    :raises PydanticCustomError: saying what it takes.
    """
    found = find_callback(name)
    try:
        if isinstance(found, type):
            found(**copy.deepcopy(dict(arguments)))
        else:
            inspect.signature(found).bind({}, **arguments)
    except Exception as error:
        todo = f"It is {name.rpartition('.')[2]}{inspect.signature(found)}."
        raise refuse(f"{name} does not take these arguments", str(error), todo) from error


def check_name(name: str) -> str:
    """Return the name of a callback that can be imported."""
    find_callback(name)
    return name


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
