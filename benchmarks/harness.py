"""What all benchmarks share: pairs in turn, medians, a table, rows as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path

SHOWN = "shown"
"""Target of a figure that is only shown."""


@dataclass(frozen=True)
class Row:
    """One figure of one case, ours beside the reference; ``reference`` None means that it could not be run.

    ``target`` is ``shown``, or what must hold: ``ratio <= 1.15``, ``ratio >= 0.8``, ``ours <= 1``, ``ours >= 0.3``.
    """

    case: str
    figure: str
    ours: float
    reference: float | None
    reference_name: str
    target: str

    @property
    def ratio(self) -> float | None:
        """Ours divided by the reference."""
        return None if not self.reference else self.ours / self.reference

    @property
    def met(self) -> bool:
        """Tell whether the target holds; never where the reference could not be run."""
        if self.reference is None or self.target == SHOWN:
            return self.reference is not None
        subject, sign, limit = self.target.split()
        value = self.ratio if subject == "ratio" else self.ours
        return value is not None and (value <= float(limit) if sign == "<=" else value >= float(limit))

    def to_json(self) -> dict[str, object]:
        """Return the row in the shape that all benchmarks write."""
        return asdict(self) | {"ratio": self.ratio, "met": self.met}


def pairs(
    count: int, ours: Callable[[], dict[str, float]], reference: Callable[[], dict[str, float]]
) -> tuple[dict[str, float], dict[str, float]]:
    """Run both in turn ``count`` times and return the medians of each figure."""
    mine: list[dict[str, float]] = []
    theirs: list[dict[str, float]] = []
    for _ in range(count):
        theirs.append(reference())
        mine.append(ours())
    return medians(mine), medians(theirs)


def medians(runs: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the median of each figure over runs."""
    return {name: statistics.median(run[name] for run in runs) for name in runs[0]}


def arguments(description: str) -> argparse.Namespace:
    """Parse ``--quick`` and ``--json FILE``."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="smaller inputs, the same rows, within two minutes")
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    return parser.parse_args()


def report(rows: Sequence[Row], file: Path | None) -> None:
    """Print the machine and a table; write JSON where asked."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("apache-airflow", "tensorflow-cpu"))
    print(f"{os.cpu_count()} CPUs, Python {platform.python_version()}, {versions}\n")
    print("| case | figure | ours | reference | ratio | target | met |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        value = "not run" if row.reference is None else f"{row.reference:.2f}"
        reference = f"{value} ({row.reference_name})"
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        print(f"| {row.case} | {row.figure} | {row.ours:.2f} | {reference} | {ratio} | {row.target} | {row.met} |")
    if file is not None:
        file.write_text(json.dumps([row.to_json() for row in rows], indent=1))
