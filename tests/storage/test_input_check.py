"""The check of inputs, by files as people have them (``tests/storage/csv``) and by made ones."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

import pytest

from airflow_tf.core.errors import DeclarationError, InputError
from airflow_tf.storage.globs import is_side_file
from airflow_tf.storage.input_check import Findings, InputCheck, check_input

CASES_FOLDER = Path(__file__).parent / "csv"
CASES = {
    case["id"]: case for line in (CASES_FOLDER / "cases.jsonl").read_text().splitlines() for case in [json.loads(line)]
}
FIVE = ("int32",) * 5
RIGHT = {
    "c03_crlf": {"rows": 2},
    "c06_header_each_part": {"rows": 3},
    "c09_blank_lines": {"rows": 2, "blank_lines": 2},
    "c12_gz": {"rows": 2},
    "c15_gz_members": {"rows": 3},
    "c17_bz2": r"part-00000\.bz2 is bzip2: TensorFlow reads plain, gzip and zlib files",
    "c20_no_success": {"rows": 2},
    "c23_copying": {"rows": 2},
    "c26_percent_name": {"rows": 2},
    "c29_glob_chars": {"rows": 2},
    "c32_int_overflow": r"part-00000:1:3: '9720798423' does not fit int32; int64 holds it",
    "c35_scientific": r"part-00000:2:1: '1e3' is no int32",
    "c38_mixed_schema": r"part-00001:1:1: the header is label,f0,f1,f2,f3, that of part-00000 is f0,f1,f2,f3,label",
    "c41_wrong_delimiter": r"000000_0:1:1: 1 columns, 5 declared; tab seen 4 times",
    "c44_no_final_newline": {"rows": 3},
    "c47_nul_bytes": r"part-00000:2:1: NUL bytes from byte 10 on",
    "c50_decimal_comma": r"data\.csv:1:3: '5;2' is no int32; semicolon seen 4 times",
    "t02_truncated": r"part-r-00000:2:60: the record is cut \(record 2\)",
    "t05_zlib_zz": {"records": 3},
    "t08_empty": {"records": 3, "empty_files": 1},
}


def test_every_case_has_its_right_answer() -> None:
    assert RIGHT.keys() == CASES.keys()


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("name", RIGHT)
def test_a_case_from_the_world_is_accepted_or_named(name: str, full: bool) -> None:
    case = CASES[name]
    kind = "csv" if case["reader"] == "csv5int" else "records"
    columns = FIVE if kind == "csv" else None
    check = InputCheck(kind, columns, header=case.get("header", False), full=full)
    names = [file for file in case["files"] if not is_side_file(Path(file).name)]
    right = RIGHT[name]
    if isinstance(right, str):
        with pytest.raises(InputError, match=right):
            check_input(CASES_FOLDER / "files" / name, names, check)
    else:
        found = check_input(CASES_FOLDER / "files" / name, names, check).summary()
        assert found == {"rows": 0, "records": 0, "blank_lines": 0, "empty_files": 0} | right


def checked(folder: Path, content: bytes, check: InputCheck, name: str = "a.csv") -> Findings:
    (folder / name).write_bytes(content)
    return check_input(folder, [name], check)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"1,2\n3\n", r"a\.csv:2:1: 1 columns, 2 in the first row"),
        (b"1,2\n3,x\n", None),  # a column of strings so far
        (b'1,"a\nb"\n2,c"d\n', r"a\.csv:3:4: a quote inside a field that is not quoted"),
        (b'1,"a\n', r"a\.csv:1:3: a quoted field does not end"),
        (b'"1"x,2\n', r"a\.csv:1:4: text after a quoted field"),
        (b"1,2\r3,4\r", r"a\.csv:1:4: a carriage return inside the line"),
        (b"1,2\n1,\xff\n", r"a\.csv:2:3: the bytes are no utf-8"),
        ("1,2\n".encode("utf-16"), r"a\.csv:1:1: UTF-16 text"),
        (b'\xef\xbb\xbf1,"2"",3"\n4,\n', None),
    ],
)
def test_text_is_named_by_file_line_and_column(tmp_path: Path, content: bytes, why: str | None) -> None:
    if why is None:
        assert checked(tmp_path, content, InputCheck()).rows == 2
        return
    with pytest.raises(InputError, match=why):
        checked(tmp_path, content, InputCheck())


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'a,"b"c\n1,2\n', r"a\.csv:1:6: text after a quoted field, in the header"),
        (b'a,b"\n1,2\n', r"a\.csv:1:4: a quote inside a field that is not quoted, in the header"),
        (b"a,b\n1,\xd9\xa1\n", r"a\.csv:2:3: '\u0661' is no int32"),  # a digit for Python, none for TensorFlow
    ],
)
def test_a_file_with_a_header_is_named_by_file_line_and_column(tmp_path: Path, content: bytes, why: str) -> None:
    with pytest.raises(InputError, match=why):
        checked(tmp_path, content, InputCheck("csv", ("int32", "int32"), header=True))


def test_a_gzip_that_was_cut_is_noticed_also_in_a_sample(tmp_path: Path) -> None:
    whole = gzip.compress(b"".join(b"%d,2\n" % number for number in range(20_000)))
    assert checked(tmp_path, whole, InputCheck("csv", ("int32", "int32")), "a.gz").rows == 1000
    for cut in (whole[:-1], whole[: len(whole) // 2]):
        with pytest.raises(InputError, match=r"a\.gz: the compressed file is damaged or cut"):
            checked(tmp_path, cut, InputCheck("csv", ("int32", "int32")), "a.gz")
    with pytest.raises(InputError, match=r"a\.zz: the compressed file is damaged or cut"):
        checked(tmp_path, zlib.compress(b"x" * 1000)[:-1], InputCheck(), "a.zz")


def test_a_sample_sees_the_beginning_and_a_full_check_all(tmp_path: Path) -> None:
    content = b"1,2\n" * 5000 + b"1,x\n"
    assert checked(tmp_path, content, InputCheck("csv", ("int32", "int32"))).rows == 1000
    with pytest.raises(InputError, match=r"a\.csv:5001:3: 'x' is no int32"):
        checked(tmp_path, content, InputCheck("csv", ("int32", "int32"), full=True))


def test_only_the_first_problems_are_told(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        checked(tmp_path, b"x\n" * 1000, InputCheck("csv", ("int32",), full=True))
    assert caught.value.why.count("is no int32") == 20


@pytest.mark.parametrize(
    "values",
    [
        {"format": "parquet"},
        {"columns": ["int8"]},
        {"delimiter": "||"},
        {"delimiter": '"'},
        {"encoding": "utf-9"},
        {"encoding": "utf-16"},
    ],
)
def test_a_check_that_is_declared_wrong_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(DeclarationError, match=next(iter(values))):
        InputCheck.of(values)
