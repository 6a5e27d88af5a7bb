"""Writes numbered lines at a steady rate, used by both sides of a benchmark, and leaves when it began and ended."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

LINE = "line {number:09d} of a program that says much: loss 0.123456, accuracy 0.987654, {rest}\n"
PAUSE_SECONDS = 0.01


def main() -> None:
    """Write ``FLOOD_LINES`` lines, ``FLOOD_RATE`` per second, whatever was late at the next look."""
    count, rate = int(os.environ["FLOOD_LINES"]), int(os.environ["FLOOD_RATE"])
    begin, written = time.time(), 0
    while written < count:
        due = min(count, int((time.time() - begin) * rate))
        lines = [LINE.format(number=number, rest="x" * (number % 40)) for number in range(written, due)]
        sys.stdout.write("".join(lines))
        sys.stdout.flush()
        written = due
        time.sleep(PAUSE_SECONDS)
    Path(os.environ["FLOOD_MARK"]).write_text(f"{begin!r} {time.time()!r}")


main()
