"""The check of sizes must find what is too long, and where."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def check(*paths):
    command = [sys.executable, str(ROOT / "scripts" / "check_sizes.py"), *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False)


def test_long_modules_and_functions_are_found(tmp_path):
    file = tmp_path / "long.py"
    file.write_text("async def f():\n" + "    g()\n" * 50 + "x = 1\n" * 350)
    done = check(file)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        f"{file}:1: module has 401 lines, at most 400 are allowed",
        f"{file}:1: f has 51 lines, at most 50 are allowed",
    ]


def test_the_limits_themselves_are_allowed(tmp_path):
    file = tmp_path / "full.py"
    file.write_text("def f():\n" + "    g()\n" * 49 + "x = 1\n" * 350)
    assert check(file).returncode == 0
