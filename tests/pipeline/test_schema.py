from __future__ import annotations

import pytest
import yaml
from jsonschema import Draft202012Validator

from airflow_tf.core.session_config.parsing import config_descriptor
from airflow_tf.core.session_config.roles import ROLE_KEYS
from airflow_tf.pipeline.models import Declaration
from airflow_tf.pipeline.schema import declaration_schema
from tests.airflow.home import ROOT
from tests.pipeline.declarations import VALID, changed, with_lines

SCHEMA = declaration_schema()
FILES = sorted((ROOT / "dags").rglob("*.yaml"))
FILES += sorted(file for folder in ("docs/reference", "tests/docs") for file in (ROOT / folder).rglob("*.tf.yaml"))
CHECK = Draft202012Validator(SCHEMA)


def errors(text):
    return [f"{error.json_path}: {error.message}" for error in CHECK.iter_errors(yaml.safe_load(text))]


def test_it_is_a_schema_and_knows_every_key():
    Draft202012Validator.check_schema(SCHEMA)
    assert set(SCHEMA["properties"]) == set(Declaration.model_fields)
    config = SCHEMA["$defs"]["TrainSpec"]["properties"]["session_config"]["properties"]
    assert set(config) == {*(field.name for field in config_descriptor().fields), *ROLE_KEYS}


@pytest.mark.parametrize("text", [VALID, *(file.read_text() for file in FILES)])
def test_valid_declarations_are_valid(text):
    assert errors(text) == []


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (changed("session_config:", "sesion_config:"), "$.train"),
        (with_lines("session_config: {}\n"), "$"),
        (changed("shard: files", "shard: rows"), "$.inputs.train"),
        (changed("count: 2", "count: two"), "$.devices.count"),
        (changed("count: 2", "count: 0"), "$.devices.count"),
        (changed("dag_id: churn\n", ""), "$"),
        (changed("kind: cpu", "kind: gpuu"), "$.devices.kind"),
        (changed("2h", "[2h]"), "$.devices.timeout"),
        (changed("rate: 1e-3", "rate: [1]"), "$.train.arguments.rate"),
        (changed("allow_growth", "alow_growth"), "$.train.session_config.gpu_options"),
        (changed("allow_soft_placement: true", "allow_soft_placement: 3"), "$.train.session_config.allow_soft_placement"),
        (with_lines("tags: [a, 1]\n"), "$.tags[1]"),
        (with_lines("version: 2\n"), "$.version"),
        (with_lines("callbacks: {on_failure: [3]}\n"), "$.callbacks.on_failure"),
    ],
)  # fmt: skip
def test_mistakes_that_an_editor_can_see_are_found_where_they_are(text, where):
    assert [error.partition(": ")[0] for error in errors(text)] == [where]


@pytest.mark.parametrize(
    "value", ["'@daily'", "[a]", "null", "{timetable: CronTriggerTimetable, expression: '@daily'}"]
)
def test_a_schedule_may_be_written_in_each_of_its_forms(value):
    assert errors(changed('"@daily"', value)) == []


@pytest.mark.parametrize("value", ["a.b", "[a.b]", "{call: a.b}", "[a.b, {call: a.b, arguments: {x: [1]}}]"])
def test_a_callback_may_be_written_in_each_of_its_forms(value):
    assert errors(with_lines(f"callbacks: {{on_failure: {value}}}\n")) == []


PARTIAL = [
    "extends: base.yaml\n",
    "extends: base.yaml\ndag_id: x\ntrain: {retries: null, arguments: {rate: null}, session_config: {gpu_options: null}}\n",
    "extends: base.yaml\ntags: null\ninputs: {data: null}\ndevices: {count: null, kind: null}\nversion: null\n",
    "extends: base.yaml\ncheckpoints: {export: {arguments: {x: 1}}}\nsweep: {mode: max}\ntrain: null\n",
    "extends: base.yaml\ncallbacks: {on_failure: {arguments: {x: 1}}, on_success: null}\nstages: {a: null}\n",
    "extends: base.yaml\nschedule: {expression: '@daily'}\n",
    "dag_id: x\ntrain: {entrypoint: a.py}\nstages: {a: {inputs: {data: 'file:///a', more: null}}, b: {}}\n",
    "dag_id: x\ntrain: {retries: 1}\nstages: {a: {devices: {count: null}, train: {entrypoint: a.py, retries: null}}}\n",
]


@pytest.mark.parametrize("text", PARTIAL)
def test_what_is_laid_over_something_may_lack_what_it_has_and_takes_keys_away_with_null(text):
    assert errors(text) == []


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (changed("count: 2", "count: null"), "$.devices.count"),
        (changed("rate: 1e-3", "rate: null"), "$.train.arguments.rate"),
        (with_lines("tags: null\n"), "$.tags"),
        (with_lines("callbacks: {on_failure: [{arguments: {}}]}\n"), "$.callbacks.on_failure[0]"),
        (changed('"@daily"', "{expression: '@daily'}"), "$.schedule"),
        ("extends: base.yaml\ntrian: {retries: 1}\n", "$"),
        ("train: {entrypoint: a.py}\nstages: {a: {}}\n", "$"),
        ("dag_id: x\ntags: null\ntrain: {entrypoint: a.py}\nstages: {a: {}}\n", "$.tags"),
        ("dag_id: x\ntrain: {entrypoint: a.py}\nstages: {a: {after: null}}\n", "$.stages.a.after"),
        ("dag_id: x\ntrain: {entrypoint: a.py}\nstages: {a: null}\n", "$.stages.a"),
    ],
)
def test_what_stands_for_itself_must_be_whole(text, where):
    assert [error.partition(": ")[0] for error in errors(text)] == [where]


@pytest.mark.parametrize("value", ["{{ params.soft }}", "{% if x %}true{% endif %}"])
def test_a_template_may_stand_for_any_value_of_the_session_config(value):
    assert errors(changed("allow_soft_placement: true", f'allow_soft_placement: "{value}"')) == []
