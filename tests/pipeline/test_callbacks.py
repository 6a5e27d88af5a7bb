"""Callbacks by name: what may be called, what reaches Airflow, and what is refused where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from airflow.providers.smtp.notifications.smtp import SmtpNotifier
from airflow.sdk import DAG
from airflow.serialization.serialized_objects import DagSerialization

from airflow_tf.core.errors import TemplateError
from airflow_tf.pipeline import load_dag, load_declaration, load_task_group
from airflow_tf.pipeline.called import find_callback
from airflow_tf.pipeline.errors import InvalidDeclarationError
from tests.pipeline import callbacks
from tests.pipeline.declarations import with_lines, write

EXAMPLE = Path(__file__).parents[1] / "docs" / "examples" / "callbacks.yaml"
HERE = "tests.pipeline.callbacks"


@pytest.fixture(autouse=True)
def calls():
    callbacks.CALLS.clear()
    return callbacks.CALLS


def test_the_example_of_the_documentation_is_valid(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE.parent)
    declared = load_declaration(EXAMPLE).declaration.callbacks
    [mail] = declared.on_failure
    assert find_callback(mail.call) is SmtpNotifier
    assert [(each.call, each.arguments) for each in declared.on_task_retry] == [
        ("oncall.page", {}),
        ("oncall.page", {"urgent": True}),
    ]


def test_those_of_the_run_reach_the_dag_and_those_of_tasks_every_task(tmp_path, calls):
    text = with_lines(
        f"callbacks:\n  on_failure: {HERE}.page\n  on_success: [{HERE}.page]\n  on_task_retry: {HERE}.page\n"
    )
    dag = load_dag(write(tmp_path, text))
    for each in [*dag.on_failure_callback, *dag.on_success_callback]:
        each({"run_id": "r"})
    assert calls == [("r", False)] * 2
    assert [len(task.on_retry_callback) for task in dag.tasks] == [1] * len(dag.tasks)
    assert not any(task.on_failure_callback for task in dag.tasks)
    stored = DagSerialization.to_dict(dag)["dag"]
    assert (stored["has_on_failure_callback"], stored["has_on_success_callback"]) == (True, True)
    again = DagSerialization.to_dict(load_dag(write(tmp_path, text)))
    assert json.dumps(again, sort_keys=True) == json.dumps(DagSerialization.to_dict(dag), sort_keys=True)


@pytest.mark.parametrize(
    ("key", "airflows"),
    [
        ("on_task_execute", "on_execute_callback"),
        ("on_task_failure", "on_failure_callback"),
        ("on_task_retry", "on_retry_callback"),
        ("on_task_skipped", "on_skipped_callback"),
        ("on_task_success", "on_success_callback"),
    ],
)
def test_each_key_of_tasks_reaches_airflows_argument(tmp_path, key, airflows):
    dag = load_dag(write(tmp_path, with_lines(f"callbacks: {{{key}: {HERE}.page}}\n")))
    assert [each.name for each in getattr(dag.get_task("train"), airflows)] == [f"{HERE}.page"]


def test_a_notifier_renders_its_text_anew_for_each_call(tmp_path, calls):
    text = with_lines(
        f"callbacks: {{on_failure: {{call: {HERE}.Told, arguments: {{text: 'run {{{{ run_id }}}}'}}}}}}\n"
    )
    dag = load_dag(write(tmp_path, text))
    [told] = dag.on_failure_callback
    told({"run_id": "a", "dag": dag})
    told({"run_id": "b", "dag": dag})
    assert calls == [("a", "run a"), ("b", "run b")]


def test_templates_in_a_functions_arguments_are_rendered_with_the_context(tmp_path, calls):
    arguments = "{urgent: ['{{ run_id }} of {{ dag.dag_id }}', 3, {a: '{{ reason }}'}]}"
    text = with_lines(f"callbacks: {{on_failure: {{call: {HERE}.page, arguments: {arguments}}}}}\n")
    dag = load_dag(write(tmp_path, text))
    [page] = dag.on_failure_callback
    page({"run_id": "a", "dag": dag, "reason": "late"})
    page({"run_id": "b", "dag": dag, "reason": "lost"})
    assert calls == [("a", ["a of churn", 3, {"a": "late"}]), ("b", ["b of churn", 3, {"a": "lost"}])]


@pytest.mark.parametrize(("call", "argument"), [("page", "urgent"), ("Told", "text")])
def test_what_airflow_does_not_know_of_a_lost_task_is_empty_and_keeps_nobody_from_being_told(
    tmp_path, calls, call, argument
):
    arguments = f"{{{argument}: '{{{{ run_id }}}} failed: {{{{ exception }}}}{{{{ reason }}}}'}}"
    text = with_lines(f"callbacks: {{on_task_failure: {{call: {HERE}.{call}, arguments: {arguments}}}}}\n")
    dag = load_dag(write(tmp_path, text))
    [told] = dag.get_task("train").on_failure_callback
    told({"run_id": "a", "dag": dag})
    told({"run_id": "b", "dag": dag, "exception": ValueError("late")})
    assert calls == [("a", "a failed: "), ("b", "b failed: late")]


def test_a_template_in_a_functions_arguments_reaches_no_more_than_the_sandbox_allows(tmp_path, calls):
    text = with_lines(
        f"callbacks: {{on_failure: {{call: {HERE}.page, arguments: {{urgent: '{{{{ dag.__class__ }}}}'}}}}}}\n"
    )
    dag = load_dag(write(tmp_path, text))
    [page] = dag.on_failure_callback
    with pytest.raises(TemplateError, match=r"arguments of tests\.pipeline\.callbacks\.page\.urgent"):
        page({"run_id": "a", "dag": dag})
    assert calls == []


def test_in_a_group_the_callbacks_of_tasks_are_kept(tmp_path):
    text = with_lines(f"callbacks: {{on_failure: {HERE}.page, on_task_failure: {HERE}.page}}\n")
    with DAG("by_hand", schedule=None) as dag:
        load_task_group(write(tmp_path, text))
    assert dag.on_failure_callback is None
    assert len(dag.get_task("churn.train").on_failure_callback) == 1


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("{on_fail: a.b}", '28:13: callbacks.on_fail: unknown key. Did you mean "on_failure"? Allowed here: on_failure'),
        ("{on_failure: page}", "28:13: callbacks.on_failure[0].call: 'page' is not module.name. Give an installed package's notifier"),
        ("{on_failure: nowhere.page}", "28:13: callbacks.on_failure[0].call: 'nowhere' cannot be imported: ModuleNotFoundError"),
        (f"{{on_failure: {HERE}.pege}}", f"callbacks.on_failure[0].call: {HERE} has no 'pege'. Did you mean \"page\"?"),
        (f"{{on_failure: {HERE}.Other}}", f"callbacks.on_failure[0].call: {HERE}.Other is neither a notifier nor a function"),
        (f"{{on_failure: {HERE}.SETTING}}", "is neither a notifier nor a function"),
        ("{on_failure: os.system}", "callbacks.on_failure[0].call: os.system is not allowed here: the standard library has no callbacks"),
        ("{on_failure: subprocess.run}", "subprocess.run is not allowed here"),
        (f"{{on_failure: {HERE}.run}}", f"{HERE}.run is not allowed here: the standard library has no callbacks"),
        (f"{{on_failure: {HERE}.system}}", "is neither a notifier nor a function"),
        (f"{{on_failure: [{HERE}.page, 3]}}", "callbacks.on_failure[1]: 3 is not a mapping"),
        (f"{{on_failure: {{call: {HERE}.Told}}}}", f"callbacks.on_failure[0].arguments: {HERE}.Told does not take these arguments: "),
        (f"{{on_failure: {{call: {HERE}.page, arguments: {{urgnt: 1}}}}}}", "It is page(context"),
        (f"{{on_failure: {{call: {HERE}.page, args: {{}}}}}}", ':63: callbacks.on_failure[0].args: unknown key. Did you mean "arguments"?'),
        (f"{{on_failure: {{call: {HERE}.Told, arguments: {{text: '{{{{ x'}}}}}}", "malformed template"),
        (f"{{on_failure: {{call: {HERE}.Told, arguments: {{text: '{{{{ runid }}}}'}}}}}}", "'runid' is not defined. Did you mean \"run_id\"?"),
        (f"{{on_failure: {{call: {HERE}.Told, arguments: {{text: x, title: ['{{{{ run_id }}}}']}}}}}}", f"arguments: {HERE}.Told does not render templates in 'title'. It renders: text."),
        (f"{{on_task_retry: {{call: {HERE}.page, arguments: {{urgent: '{{{{ replica }}}}'}}}}}}", "'replica' is not defined. Airflow's names may be used."),
        (f"{{on_task_retry: {{call: {HERE}.Told, arguments: {{text: '{{{{ inputs.train }}}}'}}}}}}", "'inputs' is not defined."),
        ("{on_failure: '{{ x }}'}", "callbacks.on_failure[0].call: a template is not allowed here"),
        ("{on_failure: null}", "callbacks.on_failure"),
    ],
)  # fmt: skip
def test_what_cannot_be_called_is_an_error_of_the_declaration(tmp_path, value, message):
    with pytest.raises(InvalidDeclarationError) as caught:
        load_declaration(write(tmp_path, with_lines(f"callbacks: {value}\n")))
    assert message in str(caught.value)
    assert "churn.tf.yaml:28:" in str(caught.value)


EDIT = "{on_failure: {call: click.edit, arguments: {editor: 'touch made;', filename: x}}}"


@pytest.mark.parametrize(
    ("value", "module"),
    [
        (EDIT, "click.termui"),
        ("{on_failure: {call: click.launch, arguments: {url: x}}}", "click.termui"),
        (f"{{on_failure: {HERE}.page}}", HERE),
    ],
)
def test_a_function_of_an_installed_package_is_refused_unless_the_setting_names_it(
    tmp_path, monkeypatch, value, module
):
    file = write(tmp_path, with_lines(f"callbacks: {value}\n"))
    monkeypatch.setenv("AIRFLOW__AIRFLOW_TF__CALLBACKS", "tests.pipe, click.term,")
    with pytest.raises(InvalidDeclarationError, match=rf"is not allowed here: {module} is neither beside this file"):
        load_declaration(file)


def test_the_setting_names_packages_with_all_that_is_in_them(tmp_path, monkeypatch):
    monkeypatch.setenv("AIRFLOW__AIRFLOW_TF__CALLBACKS", "other, tests.pipeline")
    load_declaration(write(tmp_path, with_lines(f"callbacks: {{on_failure: {HERE}.page}}\n")))


def write_module(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text("from click import edit\ndef page(context): pass\n")
    monkeypatch.syspath_prepend(folder)


@pytest.mark.parametrize(("option", "name"), [("DAGS_FOLDER", "own_dags"), ("PLUGINS_FOLDER", "own_plugins")])
def test_functions_in_the_folders_of_dags_and_plugins_may_be_called(tmp_path, monkeypatch, option, name):
    monkeypatch.setenv(f"AIRFLOW__CORE__{option}", str(tmp_path / "code"))
    write_module(tmp_path / "code" / "below", monkeypatch, name)
    (tmp_path / "elsewhere").mkdir()
    load_declaration(write(tmp_path / "elsewhere", with_lines(f"callbacks: {{on_failure: {name}.page}}\n")))


def test_a_module_beside_the_declaration_lends_its_own_functions_only(tmp_path, monkeypatch):
    write_module(tmp_path, monkeypatch, "own_beside")
    load_declaration(write(tmp_path, with_lines("callbacks: {on_failure: own_beside.page}\n")))
    with pytest.raises(InvalidDeclarationError, match=r"own_beside\.edit is not allowed here: click\.termui"):
        load_declaration(write(tmp_path, with_lines("callbacks: {on_failure: own_beside.edit}\n")))


def test_what_is_installed_beside_the_declaration_is_not_its_own(tmp_path, monkeypatch):
    write_module(tmp_path / "venv" / "lib" / "site-packages", monkeypatch, "own_installed")
    with pytest.raises(InvalidDeclarationError, match="is not allowed here"):
        load_declaration(write(tmp_path, with_lines("callbacks: {on_failure: own_installed.page}\n")))


def test_nothing_is_called_while_a_declaration_is_read(tmp_path, calls):
    load_dag(write(tmp_path, with_lines(f"callbacks: {{on_failure: {{call: {HERE}.Told, arguments: {{text: x}}}}}}\n")))
    assert calls == []
