from __future__ import annotations

import pickle

import pytest

from airflow_tf.pipeline.errors import InvalidDeclarationError, Position
from airflow_tf.pipeline.yaml_reader import MAX_BYTES, read_yaml

BOMB = "a: &a [1, 2, 3, 4, 5, 6, 7, 8]\n" + "".join(
    f"{key}: &{key} [{', '.join([f'*{before}'] * 8)}]\n" for before, key in zip("abcdef", "bcdefg", strict=True)
)


def read(tmp_path, text, name="x.tf.yaml"):
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return read_yaml(file)


def problems(tmp_path, text):
    with pytest.raises(InvalidDeclarationError) as caught:
        read(tmp_path, text)
    return [(*problem.position[:2], problem.message) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", 3, 1, "a: repeated key: it is already in line 1. Keep one of the two."),
        ("a:\n  b: {c: 1, 'c': 2}\n", 2, 13, "a.b.c: repeated key: it is already in line 2."),
        ("a:\n\tb: 1\n", 2, 1, "a tab indents the line: YAML allows spaces only. Replace the tabs by spaces."),
        ("a:\n  b: 1\n \tc: 1\n", 3, 2, "a tab indents the line"),
        ("", 1, 1, "the file is empty. Start it with 'dag_id: name'."),
        ("# only a comment\n", 1, 1, "the file is empty"),
        ("- a\n- b\n", 1, 1, "the file holds a list, not keys with values."),
        ("text\n", 1, 1, "the file holds a single value"),
        ("a: 1\n---\nb: 2\n", 2, 1, "a second YAML document begins. Write one file for each DAG."),
        ("a: b: c\n", 1, 5, "not YAML: mapping values are not allowed in this context"),
        ("a: [1, 2\n", 2, 1, "not YAML: did not find expected ',' or ']'"),
        ("a: 'x\n", 2, 1, "not YAML: found unexpected end of stream"),
        ("a: *nowhere\n", 1, 4, "not YAML: found undefined alias"),
        ("a: !!python/object/apply:os.system [x]\n", 1, 4, "a: unknown tag !!python/object/apply:os.system."),
        ("a: !secret x\n", 1, 4, "a: unknown tag !secret. Write the value without a tag."),
        ("a: !!binary aGk=\n", 1, 4, "a: unknown tag !!binary"),
        ("? [a, b]\n: 1\n", 1, 3, "a key is a list. Use plain text as key."),
        ("1: x\n", 1, 1, "the key '1' is not text: YAML reads it as !!int. Put it in quotes."),
        ("on: x\n", 1, 1, "the key 'on' is not text: YAML reads it as !!bool."),
        ("b: &b {c: 1}\na:\n  <<: *b\n", 3, 3, "a: merge keys (<<) are not supported. Write the keys out."),
        ("a: &a [*a]\n", 1, 4, "a[0]: the value contains itself through an alias"),
        (BOMB, 1, 8, "more than 20000 values: aliases count each time they are used"),
        ("a: " + "[" * 40 + "]" * 40, 1, 35, "nested deeper than 32 levels"),
        ("a: 010\n", 1, 4, "a: 010 is not a plain decimal number. Write its digits without leading zeros"),
        ("a: 1:30\n", 1, 4, "a: 1:30 is not a plain decimal number"),
        ("a: 0x10\n", 1, 4, "a: 0x10 is not a plain decimal number"),
        ("a: .inf\n", 1, 4, "a: .inf is not a plain decimal number"),
        ("a: .nan\n", 1, 4, "a: .nan is not a plain decimal number"),
        ("a: 1.0e+999\n", 1, 4, "a: 1.0e+999 is not a plain decimal number"),
        ("ä: é\nb: \x01\n", 2, 4, "a control character is not allowed in YAML. Remove it."),
        ("a: 1".encode("utf-16"), 1, 1, "the text is UTF-16. Save it as UTF-8."),
        ("a: é\nb: ö".encode("latin-1"), 1, 4, "byte 0xe9 is not UTF-8. Save it as UTF-8."),
        ("a: " + "x" * MAX_BYTES, 1, 1, "larger than 1048576 bytes"),
    ],
)
def test_refuses_with_the_position(tmp_path, text, line, column, message):
    found = problems(tmp_path, text)
    assert [problem[:2] for problem in found] == [(line, column)]
    assert found[0][2].startswith(message) or message in found[0][2]


def test_reports_all_problems_of_a_file(tmp_path):
    text = "a: 010\nb: !x 1\na: 2\n1: 3\n"
    assert [problem[0] for problem in problems(tmp_path, text)] == [1, 2, 3, 4]


def test_a_missing_file_is_a_problem(tmp_path):
    with pytest.raises(InvalidDeclarationError, match="cannot be read: No such file"):
        read_yaml(tmp_path / "none.tf.yaml")


def test_a_folder_is_a_problem(tmp_path):
    with pytest.raises(InvalidDeclarationError, match="cannot be read: Is a directory"):
        read_yaml(tmp_path)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("-12", -12),
        ("0", 0),
        ("1.5", 1.5),
        ("1e-3", 0.001),
        ("1.5e+3", 1500.0),
        ("'1e-3'", "1e-3"),
        ("'01'", "01"),
        ("true", True),
        ("off", False),
        ("null", None),
        ("~", None),
        ("2024-01-01", "2024-01-01"),
        ("x: y".replace(": ", ":"), "x:y"),
        ("|\n  one\n  \ttwo\n", "one\n\ttwo\n"),
        ("[a, {b: c}]", ["a", {"b": "c"}]),
    ],
)
def test_reads_plain_values(tmp_path, text, value):
    read_value = read(tmp_path, f"a: {text}\n").data["a"]
    assert read_value == value
    assert type(read_value) is type(value)


@pytest.mark.parametrize("prefix", [b"", b"\xef\xbb\xbf"], ids=["plain", "BOM"])
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"], ids=["LF", "CRLF"])
def test_byte_order_mark_and_line_ends_change_nothing(tmp_path, prefix, newline):
    document = read(tmp_path, prefix + newline.join([b"a: 1", b"b:", b"  c: x", b""]))
    assert document.data == {"a": 1, "b": {"c": "x"}}
    assert document.locate(("b", "c")) == Position(3, 3)


def test_locates_keys_items_and_falls_back_to_the_key_above(tmp_path):
    document = read(tmp_path, "a:\n  b:\n    - x\n    - {c: 1}\n")
    assert document.locate(("a", "b")) == Position(2, 3)
    assert document.locate(("a", "b", 1)) == Position(4, 7)
    assert document.locate(("a", "b", 1, "c")) == Position(4, 8)
    assert document.locate(("a", "b", 1, "d", "e")) == Position(4, 7)
    assert document.locate(("z",)) == Position(1, 1)


def test_the_error_survives_pickling(tmp_path):
    with pytest.raises(InvalidDeclarationError) as caught:
        read(tmp_path, "a: 010\n")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert str(copy) == str(caught.value)
    assert copy.problems == caught.value.problems


def test_deep_nesting_ends_in_an_error_and_not_in_a_crash(tmp_path):
    [(_, _, message)] = problems(tmp_path, "a: " + "[" * 100_000)
    assert "nested deeper" in message or "depth" in message
