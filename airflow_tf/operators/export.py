"""Make a SavedModel of the checkpoint that will be published, and prove that a fresh process can load and run it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import BaseOperator, Context

from airflow_tf.core.errors import CheckpointError
from airflow_tf.core.export import EXPORT_VARIABLE, SAMPLE_VARIABLE, SIGNATURES_FILE
from airflow_tf.hooks.airflow_run import TaskRun
from airflow_tf.hooks.code import program_folder
from airflow_tf.hooks.settings import load_settings
from airflow_tf.hooks.staging import ensure_all_staged
from airflow_tf.operators.candidates import SAVED_MODEL, choose, fresh_folder, pull
from airflow_tf.operators.gang import airflow_errors
from airflow_tf.operators.local_program import LocalProgram


class CheckpointExportOperator(BaseOperator):
    """Run a program that makes a SavedModel, then load it in another process and run its signatures.

    Both run on this host's CPU. The program finds the chosen checkpoint as ``AIRFLOW_TF_RESUME_FROM`` and saves into
    ``AIRFLOW_TF_EXPORT_DIR``; where zeros are no valid input of a signature, it also saves arrays by the inputs' names
    to ``AIRFLOW_TF_EXPORT_SAMPLE`` (``numpy.savez``).

    :param from_task: task id of the aggregation.
    :param evaluation_task: task id of the evaluation, if any; it, ``metric`` and ``mode`` choose as in the publication.
    :return: XCom ``{"candidate", "folder", "signatures"}``.
    """

    template_fields: Sequence[str] = ("code", "arguments", "environment", "inputs")
    ui_color = "#e3a857"

    def __init__(  # noqa: PLR0913 (the declaration's export section and how the candidate is chosen)
        self,
        *,
        entrypoint: str,
        arguments: Mapping[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        inputs: Mapping[str, Mapping[str, Any]] | None = None,
        api: str = "auto",
        python: str | None = None,
        code: str | None = None,
        from_task: str = "aggregate_checkpoints",
        evaluation_task: str | None = None,
        metric: str | None = None,
        mode: str = "min",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.entrypoint = entrypoint
        self.arguments = arguments
        self.environment = environment
        self.inputs = inputs
        self.api = api
        self.python = python
        self.code = code
        self.from_task = from_task
        self.evaluation_task = evaluation_task
        self.metric = metric
        self.mode = mode

    def render_template_fields(self, context: Context, jinja_env: Any = None) -> None:  # noqa: ANN401 (as in Airflow)
        """Render with ``replica`` too, which the training's environment may use: as replica 0 of 1."""
        variables: Any = {**context, "replica": {"index": 0, "count": 1}}
        super().render_template_fields(variables, jinja_env)

    def execute(self, context: Context) -> dict[str, Any]:
        """Choose, export, test."""
        with airflow_errors():
            run, settings, ti = TaskRun.from_context(context), load_settings(), context["ti"]
            aggregated, evaluation = pull(ti, self.from_task, self.evaluation_task)
            name = choose(aggregated, evaluation, self.metric, self.mode)
            folders = run.folders(settings)
            staged = ensure_all_staged(self.inputs or {}, folders=folders, settings=settings, log=self.log)
            folder = fresh_folder(folders.aggregate(self.task_id))
            program = LocalProgram(
                name="export",
                entrypoint=self.entrypoint,
                dag_folder=program_folder(self.code, context["dag"], lambda: folders, self.log),
                is_code=self.code is not None,
                arguments=self.arguments or {},
                inputs={name: each.folder for name, each in staged.items()},
                environment=self.environment or {},
                api=self.api,
                python=self.python,
            )
            signatures = export(program, aggregated["candidates"][name], folder)
            self.log.info("exported %s with signatures %s", name, ", ".join(signatures))
            return {"candidate": name, "folder": str(folder / SAVED_MODEL), "signatures": signatures}


def export(program: LocalProgram, checkpoint: str, folder: Path) -> dict[str, Any]:
    """Make ``folder/saved_model`` of a checkpoint, test it, and return its signatures.

    :raises CheckpointError: if the program fails, saves nothing, or what it saved does not pass the test.
    """
    made, sample = folder / SAVED_MODEL, folder / "sample.npz"
    variables = {EXPORT_VARIABLE: str(made), SAMPLE_VARIABLE: str(sample)}
    program.run(folder / "export", variables, checkpoint)
    if not (made / "saved_model.pb").is_file():
        todo = "Call tf.saved_model.save(model, os.environ['AIRFLOW_TF_EXPORT_DIR'])."
        raise CheckpointError("the export program ended well but saved no SavedModel", f"{made} has none", todo)
    test = LocalProgram(
        "load test", "airflow_tf.runtime.load_test:main", folder, environment=program.environment, python=program.python
    )
    test.run(folder / "load-test", variables)
    signatures: dict[str, Any] = json.loads((folder / "load-test" / SIGNATURES_FILE).read_text(encoding="utf-8"))
    return signatures
