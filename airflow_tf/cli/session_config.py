"""What ``airflow tf session-config`` does: judge files, without a database, a ledger or TensorFlow."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

from airflow_tf.cli.output import Row, command, print_rows
from airflow_tf.core.errors import SessionConfigError, TemplateError
from airflow_tf.core.session_config.files import read_file
from airflow_tf.core.session_config.report import describe_config
from airflow_tf.core.templates import has_template, is_template, render, without_templates

_FIRST = {"replica": {"index": 0, "count": 1, "role": "worker"}}
"""What a file's templates may use here: they are rendered as for the first replica."""


@command
def session_config(args: Namespace) -> None:
    """Show what becomes of session configs; exit code 1 if one is not valid."""
    rows = [_row(Path(name)) for name in args.files]
    if args.output == "table":
        for row in rows:
            _print(row)
    else:
        print_rows(rows, args.output)
    if not all(row["valid"] for row in rows):
        raise SystemExit(1)


def _row(file: Path) -> Row:
    try:
        value = read_file(file, _FIRST)
        later: list[str] = []
        if has_template(value):
            value, later = _render_known(value)
    except SessionConfigError as error:
        problem = {"path": error.what, "reason": error.why, "remedy": error.todo}
        return {
            "file": str(file), "valid": False, "errors": [problem], "warnings": [], "normalised": {}, "fields": {},
        }  # fmt: skip
    described = describe_config(value)
    described["warnings"] += [
        {"path": path, "reason": "is known only when Airflow renders it", "remedy": "It is checked before the start."}
        for path in later
    ]
    return {"file": str(file), **described}


def _render_known(value: Any, path: str = "session_config") -> tuple[Any, list[str]]:  # noqa: ANN401  any YAML value
    """Render what needs the replica only; return the rest of the config and the paths of what is left out."""
    if isinstance(value, dict):
        result, later = {}, []
        for key, item in value.items():
            rendered, left = _render_known(item, f"{path}.{key}")
            later += left
            if not (is_template(item) and left):
                result[key] = rendered
        return result, later
    try:
        return render(value, _FIRST, path), []
    except TemplateError:
        return without_templates(value), [path]


def _print(row: Row) -> None:
    lines = [f"{row['file']}: {'valid' if row['valid'] else 'not valid'}"]
    for kind in ("errors", "warnings"):
        lines += [f"  {kind[:-1]}: {one['path']}: {one['reason']}. {one['remedy']}".rstrip() for one in row[kind]]
    if row["normalised"]:
        lines.append(f"  normalised: {json.dumps(row['normalised'], sort_keys=True)}")
    for path, ways in row["fields"].items():
        lines.append(f"  {path}")
        lines += [f"    {way:6} {by}" for way, by in ways.items()]
    print("\n".join(lines))  # noqa: T201
