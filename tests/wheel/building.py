"""What uv builds and installs for the tests of the wheel."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def uv(*words: object) -> None:
    """Run uv in the clone, whose pyproject.toml tells it how to do without krb5."""
    command = shutil.which("uv") or str(ROOT / ".state" / "uv" / "bin" / "uv")
    done = subprocess.run(
        [command, *map(str, words)], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
