"""Templates as far as they have a value before there is a run: params, Airflow's Variables and connections."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow.sdk import DAG
from airflow.sdk.exceptions import AirflowException, AirflowRuntimeError, ParamValidationError
from airflow.sdk.execution_time.context import ConnectionAccessor, VariableAccessor
from jinja2 import TemplateError

from airflow_tf.cli.output import Row
from airflow_tf.core.templates import attributes_of, is_template, variables_of

_MISSING_VARIABLE = re.compile(r"Variable (\S+) not found")
_KNOWN = frozenset({"params", "var", "conn", "replica"})


def problem_row(key: str, problem: str, remedy: str = "") -> Row:
    """Return a problem of a plan: which key, what is wrong, and what to do."""
    return {"key": key, "problem": problem.rstrip("."), "remedy": remedy}


class KnownValues:
    """Renders templates of a DAG; gathers what is wrong, and what only a run will know.

    :ivar later: ``key``, ``template`` and ``needs`` of what stays a template.
    :ivar problems: ``key``, ``problem`` and ``remedy``.
    """

    def __init__(self, dag: DAG, given: Mapping[str, Any]) -> None:
        self.later: list[Row] = []
        self.problems: list[Row] = []
        self.params: dict[str, Any] = {}
        self._missing: set[str] = set()
        self._environment = dag.get_template_env()
        self._variables = {"json": VariableAccessor(deserialize_json=True), "value": VariableAccessor(False)}
        for name in dag.params:
            self._resolve(dag, name, given)

    def _resolve(self, dag: DAG, name: str, given: Mapping[str, Any]) -> None:
        param = dag.params.get_param(name)
        try:
            self.params[name] = param.resolve(given[name]) if name in given else param.resolve()
        except ParamValidationError as error:
            self._missing.add(name)
            todo = f"Give it a default, or a value: --conf '{{\"{name}\": …}}'."
            self.add_problem(f"params.{name}", str(error).splitlines()[0], todo)

    def add_problem(self, key: str, problem: str, remedy: str = "") -> None:
        """Note what is wrong, once."""
        row = problem_row(key, problem, remedy)
        if row not in self.problems:
            self.problems.append(row)

    def render(self, value: Any, key: str, replica: Mapping[str, int] | None = None) -> Any:  # noqa: ANN401  any YAML value
        """Return ``value`` with all that is known put in; a template that needs a run stays as it is."""
        if isinstance(value, dict):
            return {name: self.render(item, f"{key}.{name}", replica) for name, item in value.items()}
        if isinstance(value, list):
            return [self.render(item, f"{key}[{index}]", replica) for index, item in enumerate(value)]
        return self._text(value, key, replica) if is_template(value) else value

    def _text(self, text: str, key: str, replica: Mapping[str, int] | None) -> str:
        needs = variables_of(text) - (_KNOWN if replica else _KNOWN - {"replica"})
        needs |= {f"params.{name}" for name in attributes_of(text, "params") & self._missing}
        if needs:
            row = {"key": key, "template": text, "needs": sorted(needs)}
            if row not in self.later:
                self.later.append(row)
            return text
        values = {"params": self.params, "var": self._variables, "conn": ConnectionAccessor(), "replica": replica}
        try:
            return self._environment.from_string(text).render(values)
        except AirflowRuntimeError as error:
            what = str((error.error.detail or {}).get("message", error))
            named = _MISSING_VARIABLE.search(what)
            name = named.group(1) if named else "NAME"
            todo = f"Set it: airflow variables set {name} VALUE, or AIRFLOW_VAR_{name.upper()} in the environment."
            self.add_problem(key, what, todo)
        except (TemplateError, AirflowException, ValueError, TypeError) as error:
            self.add_problem(key, str(error), f"The template is {text!r}.")
        return text
