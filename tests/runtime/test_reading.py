"""Datasets over files as people have them, and their conversion into row blocks."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from airflow_tf.core.errors import DeclarationError, InputError

pytestmark = pytest.mark.tensorflow

CASES_FOLDER = Path(__file__).parents[1] / "storage" / "csv"
CASES = [json.loads(line) for line in (CASES_FOLDER / "cases.jsonl").read_text().splitlines()]
FIVE = ("int32",) * 5
FIRST, SECOND, THIRD = (1, 2, 3, 4, 0), (5, 6, 7, 8, 1), (9, 9, 9, 9, 0)
RIGHT = {
    "c03_crlf": [FIRST, SECOND],
    "c06_header_each_part": [FIRST, SECOND, THIRD],
    "c09_blank_lines": [FIRST, SECOND],
    "c12_gz": [FIRST, SECOND],
    "c15_gz_members": [FIRST, SECOND, THIRD],
    "c17_bz2": r"part-00000\.bz2 is bzip2",
    "c20_no_success": [FIRST, SECOND],
    "c23_copying": [FIRST, SECOND],
    "c26_percent_name": [FIRST, SECOND],
    "c29_glob_chars": [FIRST, SECOND],
    "c32_int_overflow": r"part-00000:1:3: '9720798423' does not fit int32; int64 holds it",
    "c35_scientific": r"part-00000:2:1: '1e3' is no int32",
    "c38_mixed_schema": r"part-00001:1:1: the header is label,f0,f1,f2,f3",
    "c41_wrong_delimiter": r"000000_0:1:1: 1 columns, 5 declared; tab seen 4 times",
    "c44_no_final_newline": [FIRST, SECOND, THIRD],
    "c47_nul_bytes": r"part-00000:2:1: NUL bytes",
    "c50_decimal_comma": r"data\.csv:1:3: '5;2' is no int32; semicolon seen 4 times",
    "t02_truncated": r"truncated record at 60",
    "t05_zlib_zz": 3,
    "t08_empty": 3,
}


@pytest.fixture
def tf():
    import tensorflow as tensorflow_module  # noqa: ICN001 -- the fixture has the usual name

    return tensorflow_module


def rows(dataset) -> list[tuple[int, ...]]:
    return [tuple(map(int, row)) for batch in dataset.as_numpy_iterator() for row in zip(*batch, strict=True)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_a_case_from_the_world_is_read_right_or_named(case, tf) -> None:
    from airflow_tf.runtime.reading import csv_dataset, records_dataset

    folder, right = CASES_FOLDER / "files" / case["id"], RIGHT[case["id"]]
    names = [folder / name for name in case["files"] if not name.endswith("._COPYING_")]

    def read():
        if case["reader"] == "csv5int":
            return rows(csv_dataset(names, FIVE, header=case.get("header", False)))
        return sum(1 for _ in records_dataset(names))

    if isinstance(right, str):
        with pytest.raises((InputError, tf.errors.OpError), match=right):
            read()
    else:
        assert read() == right


def test_batches_go_over_the_ends_of_files_and_problems_keep_their_line(tmp_path: Path, tf) -> None:
    from airflow_tf.runtime.reading import csv_dataset

    (tmp_path / "a").write_bytes(b"\xef\xbb\xbf" + b"1,2\r\n" * 10_000)
    (tmp_path / "b.gz").write_bytes(gzip.compress(b"\n3,\n" * 10_000))
    (tmp_path / "_SUCCESS").touch()
    batches = list(csv_dataset(tmp_path, ("int32", "float32"), defaults=(0, -1.0), batch_rows=7000).as_numpy_iterator())
    assert [len(batch[0]) for batch in batches] == [7000, 7000, 6000]
    assert sum(int(batch[0].sum()) for batch in batches) == 40_000
    assert sum(float(batch[1].sum()) for batch in batches) == 10_000
    with pytest.raises(tf.errors.OpError, match=r"b\.gz:2:3: the field is empty and its column has no default"):
        rows(csv_dataset(tmp_path, ("int32", "float32")))
    (tmp_path / "a").write_bytes(b"1,2\n" * 9000 + b'1,"2\n')
    with pytest.raises(tf.errors.OpError, match=r"a:9001:3: a quoted field does not end in its line"):
        rows(csv_dataset(tmp_path / "a", ("int32", "string")))


@pytest.mark.parametrize(
    ("content", "columns", "right"),
    [
        (b"1\n2\n", ("int32",), [(1,), (2,)]),
        (b"\n\n", ("int32",), []),
        (b"\n\n", ("int32", "int64"), []),
        (b"\xef\xbb\xbf7,8\n", ("string", "int32"), [(7, 8)]),
        (b"\xef\xbb\xbf7,8\n\n9,1\n", ("int32", "int32"), [(7, 8), (9, 1)]),
    ],
)
def test_few_columns_blank_lines_and_byte_order_marks_are_read(content, columns, right, tmp_path: Path, tf) -> None:
    from airflow_tf.runtime.reading import csv_dataset

    (tmp_path / "a").write_bytes(content)
    assert rows(csv_dataset(tmp_path, columns)) == right


def test_a_row_that_is_wrong_is_an_invalid_argument_with_its_place(tmp_path: Path, tf) -> None:
    from airflow_tf.runtime.reading import csv_dataset

    (tmp_path / "a").write_bytes(b"1\nx\n")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"a:2:1: 'x' is no int32"):
        rows(csv_dataset(tmp_path, ("int32",)))


def test_row_blocks_hold_the_same_rows_and_are_made_once(tmp_path: Path, tf) -> None:
    from airflow_tf.runtime.reading_blocks import blocks_dataset, convert_csv

    (tmp_path / "a.csv").write_bytes(b"".join(b"%d,%d.5\n" % (number, number) for number in range(100_000)))
    target = tmp_path / "blocks"
    assert convert_csv(tmp_path / "a.csv", ("int64", "float32"), target) == 100_000
    (tmp_path / "a.csv").unlink()
    assert convert_csv(tmp_path / "a.csv", ("int64", "float32"), target) == 100_000
    batches = list(blocks_dataset(target, batch_rows=30_000).as_numpy_iterator())
    assert [len(batch[0]) for batch in batches] == [30_000, 30_000, 30_000, 10_000]
    assert [value for batch in batches for value in batch[0].tolist()] == list(range(100_000))
    assert batches[0][1][:2].tolist() == [0.5, 1.5]
    with pytest.raises(DeclarationError, match="type string"):
        convert_csv(tmp_path / "a.csv", ("string",), tmp_path / "other")
    with pytest.raises(InputError, match="holds no row blocks"):
        blocks_dataset(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["blocks"]
