"""Whether a folder that is about to be renamed into place has all that was written into it.

Another writer may have removed it meanwhile, and HDFS makes the folder anew for the file that is written next.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping

from airflow_tf.core.errors import StorageError, StorageNotFoundError
from airflow_tf.storage.base import FileSystem


def require_whole(files: FileSystem, folder: str, sizes: Mapping[str, int]) -> None:
    """Compare the files below ``folder`` with ``sizes`` (name below it to bytes).

    :raises StorageError: naming one that is missing or of another size.
    """
    found: dict[str, int] = {}
    for parent in {posixpath.dirname(name) for name in sizes}:
        try:
            for info in files.list(posixpath.join(folder, parent)):
                found[posixpath.join(parent, posixpath.basename(info.path))] = info.size
        except StorageNotFoundError:
            continue
    for name, size in sizes.items():
        if found.get(name) != size:
            why = f"{name} was removed by another writer" if name not in found else f"{name} has {found[name]} bytes"
            raise StorageError(f"{folder} is not whole any more", why, "Try again when the other writer has ended.")
