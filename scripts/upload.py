"""Copy a local folder to a file system: ``python scripts/upload.py FOLDER URI``; files that are there are replaced."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from airflow_tf.storage.base import CHUNK_BYTES, Uri
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.registry import open_file_system


def chunks(path: Path) -> Iterator[bytes]:
    """Yield a file's content in pieces."""
    with path.open("rb") as file:
        while piece := file.read(CHUNK_BYTES):
            yield piece


def main() -> None:
    """Copy what the command line names."""
    if len(sys.argv) != 3:  # noqa: PLR2004 - the program and its two arguments
        raise SystemExit(__doc__)
    folder, target = Path(sys.argv[1]), sys.argv[2]
    uri = Uri.parse(target)
    files = open_file_system(uri, StorageOptions.from_uri(target))
    sources = sorted(path for path in folder.rglob("*") if path.is_file())
    for source in sources:
        destination = f"{uri.path}/{source.relative_to(folder).as_posix()}"
        files.make_dirs(destination.rpartition("/")[0])
        files.write(destination, chunks(source))
    print(f"{len(sources)} files copied to {target}")


if __name__ == "__main__":
    main()
