"""``docs/storage_faults.md`` names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_every_row_names_a_test_of_storage() -> None:
    text = (ROOT / "docs" / "storage_faults.md").read_text(encoding="utf-8")
    there = {
        name
        for file in (ROOT / "tests" / "storage").glob("test_*.py")
        for name in re.findall(r"^def (test_\w+)", file.read_text(encoding="utf-8"), re.MULTILINE)
    }
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| Fault")]
    assert len(rows) > 30
    for row in rows:
        named = re.findall(r"`(test_\w+)`", row)
        assert named, row
        assert set(named) <= there, row
