"""Refuse modules over 400 lines and functions over 50: what grows beyond is two things in one place."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("airflow_tf", "benchmarks", "dags", "plugins", "scripts")
MAX_MODULE_LINES = 400
MAX_FUNCTION_LINES = 50


def violations(path: Path) -> Iterator[str]:
    """Yield one line, with its place, for everything in the file that is too long."""
    text = path.read_text(encoding="utf-8")
    lines = text.count("\n")
    if lines > MAX_MODULE_LINES:
        yield f"{path}:1: module has {lines} lines, at most {MAX_MODULE_LINES} are allowed"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAX_FUNCTION_LINES:
                yield f"{path}:{node.lineno}: {node.name} has {lines} lines, at most {MAX_FUNCTION_LINES} are allowed"


def main() -> int:
    """Check all Python files of the repository, or those named on the command line."""
    paths = map(Path, sys.argv[1:]) if sys.argv[1:] else (p for f in FOLDERS for p in sorted(Path(f).rglob("*.py")))
    found = [line for path in paths for line in violations(path)]
    print("\n".join(found) if found else "all modules and functions are within their limits")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
