"""The benchmark of parsing, at a tiny size: both sides make the same DAGs."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any


def test_all_sides_make_the_dags_and_the_rows_are_complete(tmp_path: Path) -> None:
    parse: Any = importlib.import_module("parse")
    rows = parse.measure(tmp_path, 2, 1)
    assert [(row.case, row.figure, row.reference_name) for row in rows] == [
        ("2 declarations", "seconds", "Python loop"),
        ("2 declarations", "seconds", "dag-factory"),
        ("2 declarations", "MB RSS", "Python loop"),
        ("2 declarations", "MB RSS", "dag-factory"),
        ("one of 2", "ms", "all of them"),
        ("2 validated", "seconds", "airflow version"),
    ]
    assert all(row.ours > 0 for row in rows)
