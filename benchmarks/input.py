"""Rows per second from staged CSV files: ours beside the queue runners of TensorFlow 1, in turn, same file."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import Row, arguments, report

_PROGRAM = Path(__file__).parent / "read_csv.py"


def rows_per_second(way: str, file: Path) -> float:
    """Read the file in a fresh process."""
    done = subprocess.run([sys.executable, str(_PROGRAM), way, str(file)], capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def main() -> None:
    """Measure and print."""
    chosen = arguments(__doc__ or "")
    found: dict[str, list[float]] = {"queue_runner": [], "csv": [], "blocks": []}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "rows.csv"
        with file.open("w") as lines:
            for number in range(200_000 if chosen.quick else 3_000_000):
                lines.write(f"{number},{number % 7},{number % 11},{number % 13},{number % 2}\n")
        for _ in range(2 if chosen.quick else 5):
            for way, speeds in found.items():
                speeds.append(rows_per_second(way, file))
    queue, csv, blocks = (statistics.median(speeds) for speeds in found.values())
    rows = [
        Row("csv_dataset", "rows/s", csv, queue, "queue runners", "ratio >= 60"),
        Row("csv_dataset", "rows/s", csv, queue, "queue runners", "ours >= 300000"),
        Row("blocks_dataset", "rows/s", blocks, queue, "queue runners", "ours >= 5000000"),
    ]
    report(rows, chosen.json)


if __name__ == "__main__":
    main()
