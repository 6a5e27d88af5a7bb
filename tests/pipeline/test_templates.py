from __future__ import annotations

import datetime as dt

import pytest
from airflow.sdk.definitions._internal.templater import FILTERS

from airflow_tf.core.errors import TemplateError
from airflow_tf.core.templates import check_syntax, coerce, has_template, render


def test_renders_strings_at_any_depth_and_leaves_the_rest():
    value = {"a": ["{{ replica }}", 1, None, True], "b": {"{{ key }}": "x{{ replica }}y"}, "c": 1.5}
    assert render(value, {"replica": 3}) == {"a": ["3", 1, None, True], "b": {"{{ key }}": "x3y"}, "c": 1.5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{{ epoch }}", "train.arguments.x: 'epoch' is undefined"),
        ("{{ params.epoch }}", "has no attribute 'epoch'"),
        ("{{ params.epoch", "malformed template, line 1"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ items.append(1) }}", "unsafe|not safely callable"),
    ],
)
def test_names_the_path_and_the_cause(text, message):
    with pytest.raises(TemplateError, match=message) as caught:
        render({"train": {"arguments": {"x": text}}}, {"params": {"epochs": 1}, "items": []})
    assert str(caught.value).startswith("train.arguments.x: ")


def test_names_the_defined_variables():
    with pytest.raises(TemplateError, match=r"Defined here: params, replica\."):
        render("{{ replicas }}", {"replica": 0, "params": {}})


@pytest.mark.parametrize("moment", [dt.datetime(2026, 1, 2, 3, 4, 5, tzinfo=dt.UTC), None])
def test_filters_of_airflow_give_what_airflow_gives(moment):
    for name, filter_ in FILTERS.items():
        assert render(f"{{{{ x | {name} }}}}", {"x": moment}) == str(filter_(moment))


@pytest.mark.parametrize("text", ["{{ x | dss }}", "{{ x is dss }}"])
def test_refuses_a_filter_or_a_test_that_nobody_defines(text):
    with pytest.raises(TemplateError, match=r"^field: malformed template, line 1: No (filter|test) named 'dss'"):
        check_syntax(text, "field")


def test_finds_templates_anywhere():
    assert has_template({"a": [1, {"b": "{% if x %}1{% endif %}"}]})
    assert not has_template({"{{ a }}": ["}}", 1, None]})


def test_checks_syntax_without_rendering():
    check_syntax("{{ anything.at.all }}")
    with pytest.raises(TemplateError, match="here: malformed template"):
        check_syntax("{% if %}", "here")


@pytest.mark.parametrize(
    ("value", "type_name", "expected"),
    [
        ("01", "int", 1),
        ("-7", "int", -7),
        (" 7 ", "int", 7),
        (7, "int", 7),
        ("1e-3", "float", 0.001),
        (".5", "float", 0.5),
        ("01", "float", 1.0),
        (3, "float", 3.0),
        ("True", "bool", True),
        ("false", "bool", False),
        (True, "bool", True),
        ("None", "str", "None"),
        (" a ", "str", " a "),
        (5, "str", "5"),
    ],
)
def test_coerces(value, type_name, expected):
    result = coerce(value, type_name)
    assert result == expected
    assert type(result) is type(expected)


@pytest.mark.parametrize(
    ("value", "type_name"),
    [
        ("1e-3", "int"),
        ("1.0", "int"),
        ("1_000", "int"),
        ("0x10", "int"),
        ("٣", "int"),
        (True, "int"),
        ("True", "int"),
        ("None", "int"),
        (None, "int"),
        ("", "int"),
        ("nan", "float"),
        ("inf", "float"),
        ("1e999", "float"),
        ("None", "float"),
        (True, "float"),
        ("True", "float"),
        ("1", "bool"),
        ("yes", "bool"),
        ("None", "bool"),
        (1, "bool"),
        (None, "str"),
        ({}, "str"),
    ],
)
def test_refuses_what_does_not_read_as_the_type(value, type_name):
    with pytest.raises(TemplateError, match=r"^a\.b: "):
        coerce(value, type_name, "a.b")
