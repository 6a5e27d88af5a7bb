"""Show the newest version published below a base URI: ``python scripts/show_published.py BASE_URI``.

Prints a table of the evaluation and the line ``published URI mae X mean-predictor Y``. Ends with 1 if there is no
complete version, or if it is not better than the baseline: then the training is wrong.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from airflow_tf.core.errors import AirflowTfError
from airflow_tf.storage.base import Uri, exists, read_all
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.registry import open_file_system

METRIC, BASELINE = "mae", "mean-predictor"


def newest(base: str) -> tuple[str, dict[str, Any]]:
    """Return URI and manifest of the newest complete version; the names of versions sort by time."""
    uri = Uri.parse(base)
    files = open_file_system(uri, StorageOptions.from_uri(base))
    versions = sorted((info.path for info in files.list(uri.path) if "/v=" in info.path), reverse=True)
    for path in versions:
        if exists(files, f"{path}/_SUCCESS"):
            return uri.at(path), json.loads(read_all(files, f"{path}/manifest.json"))
    raise SystemExit(f"nothing is published below {base}")


def main() -> None:
    """Print the table and the last line."""
    if len(sys.argv) != 2:  # noqa: PLR2004 - the program and its one argument
        raise SystemExit(__doc__)
    try:
        uri, manifest = newest(sys.argv[1])
    except AirflowTfError as error:
        raise SystemExit(str(error)) from error
    evaluation, chosen = manifest["origin"]["evaluation"], manifest["origin"]["candidate"]
    print(f"\n{'':16}{METRIC:>10}")
    for name, metrics in (evaluation["baselines"] | evaluation["candidates"]).items():
        print(f"{name:16}{metrics[METRIC]:>10.3f}{'  <- published' if name == chosen else ''}")
    found, baseline = manifest["metrics"][METRIC], evaluation["baselines"][BASELINE][METRIC]
    if found >= baseline:
        raise SystemExit(f"{uri} is not better than the baseline: {METRIC} {found:.3f}, {BASELINE} {baseline:.3f}")
    print(f"\npublished {uri} {METRIC} {found:.3f} {BASELINE} {baseline:.3f}")


if __name__ == "__main__":
    main()
