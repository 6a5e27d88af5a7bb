"""``@task.tensorflow``: a function of the DAG file as a training program."""

from __future__ import annotations

import dataclasses
import inspect
import json
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from airflow.sdk import Context
from airflow.sdk.bases.decorator import DecoratedOperator, TaskDecorator, task_decorator_factory

from airflow_tf.core.errors import DeclarationError
from airflow_tf.core.identity import digest, readable
from airflow_tf.core.launch import ReplicaLaunch
from airflow_tf.core.session_config import ConfigContext
from airflow_tf.hooks.airflow_run import TaskRun, instance_count
from airflow_tf.hooks.settings import load_settings
from airflow_tf.operators.train import TensorFlowTrainOperator

_SCRIPT = '''\
"""The function of task {task_id}, as @task.tensorflow found it in its DAG file."""

from __future__ import annotations

{source}

if __name__ == "__main__":
    from airflow_tf.runtime.function import call

    call({name}, {arguments!r}, {keywords!r})
'''


class TensorFlowDecoratedOperator(DecoratedOperator, TensorFlowTrainOperator):
    """Run a function as one replica, in the training interpreter, under a supervisor that outlives the task.

    Only the function's source goes there: it imports what it needs itself, and its arguments are plain JSON values,
    results of other tasks included. An argument ``inputs`` that is not given is name -> folder of the staged inputs.
    What it returns, numbers by name, become the metrics of the task's result. Mapped by ``expand``, each instance is a
    replica of its own: they live apart, take their turns for devices, and one supervisor on a host serves all.

    :param devices: how many devices the function gets (``per_replica`` of the operator).
    :param kwargs: arguments of :class:`~airflow_tf.operators.train.TensorFlowTrainOperator`, but for those that
        several replicas need; ``require_checkpoint`` is off unless it is given.
    """

    template_fields: Sequence[str] = (*TensorFlowTrainOperator.template_fields, *DecoratedOperator.template_fields)
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **TensorFlowTrainOperator.template_fields_renderers,
        **DecoratedOperator.template_fields_renderers,
    }
    custom_operator_name = "@task.tensorflow"
    _is_numbered_by_map_index = True

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Sequence[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        devices: int | str = 1,
        **kwargs: Any,
    ) -> None:
        given = dict(op_kwargs or {})
        if _lacks_inputs(python_callable, op_args or (), given):
            given["inputs"] = None
        fixed: dict[str, Any] = {"replica": 0, "count": 1, "entrypoint": "", "require_checkpoint": False}
        super().__init__(
            python_callable=python_callable,
            op_args=op_args,
            op_kwargs=given,
            **fixed | {"per_replica": devices} | kwargs,
        )

    def _choose_replica(self, context: Context) -> None:
        """Be the replica that has the number of this mapped instance; a task that is not mapped has one replica."""
        run = TaskRun.from_context(context)
        if run.map_index >= 0:
            self.replica, self.count = run.map_index, instance_count(run)
            self._replicas = (self.replica,)

    def _launch(self, context: Context, devices: ConfigContext, replica: int) -> ReplicaLaunch:
        """Write the function as a script into the folder of the run, unless it is there."""
        text = self._script()
        folder = TaskRun.from_context(context).folders(load_settings()).root / "functions"
        script = folder / f"{readable(self.task_id)}.{digest(text)}.py"
        _write_whole(script, text)
        self.entrypoint = str(script)
        launch = super()._launch(context, devices, replica)
        return dataclasses.replace(launch, code_folder=str(Path(context["dag"].fileloc).parent))

    def _script(self) -> str:
        """Return the program.

        :raises DeclarationError: if an argument is no JSON value.
        """
        try:
            arguments, keywords = json.dumps(list(self.op_args)), json.dumps(dict(self.op_kwargs))
        except (TypeError, ValueError) as error:
            what = f"an argument of {self.python_callable.__name__} is no plain JSON value"
            raise DeclarationError(what, str(error), "Give a path instead.") from error
        return _SCRIPT.format(
            task_id=self.task_id,
            source=self.get_python_source().strip(),  # type: ignore[no-untyped-call]  # Airflow's own
            name=self.python_callable.__name__,
            arguments=arguments,
            keywords=keywords,
        )


def _write_whole(path: Path, text: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            file.write(text)
        Path(file.name).replace(path)


def _lacks_inputs(function: Callable[..., Any], arguments: Sequence[Any], keywords: Mapping[str, Any]) -> bool:
    """Tell whether ``function`` takes ``inputs`` and is called without; Airflow refuses a call that cannot be."""
    signature = inspect.signature(function)
    try:
        given = signature.bind_partial(*arguments, **keywords).arguments
    except TypeError:
        return False
    return "inputs" in signature.parameters and "inputs" not in given


def tensorflow_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """Make a task of a function that trains; Airflow knows it as ``@task.tensorflow``."""
    return task_decorator_factory(
        python_callable=python_callable,
        multiple_outputs=False,
        decorated_operator_class=TensorFlowDecoratedOperator,
        **kwargs,
    )
