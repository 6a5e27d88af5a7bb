"""Which module implements which backend. A new backend is one line here and one file beside it."""

from __future__ import annotations

import importlib

from airflow_tf.core.errors import DeclarationError
from airflow_tf.storage.base import FileSystem, Uri
from airflow_tf.storage.options import SCHEMES, StorageOptions

BACKENDS = {
    "file": "airflow_tf.storage.local:LocalFileSystem",
    "hdfs": "airflow_tf.storage.hdfs:HdfsFileSystem",
    "viewfs": "airflow_tf.storage.viewfs:ViewFileSystem",
    "webhdfs": "airflow_tf.storage.webhdfs:WebHdfsFileSystem",
}


def open_file_system(uri: Uri, options: StorageOptions) -> FileSystem:
    """Import the backend's module and return a client of the file system that ``uri`` names.

    :raises DeclarationError: if there is no such backend.
    """
    backend = "viewfs" if (uri.scheme, options.backend) == ("viewfs", "hdfs") else options.backend
    if backend not in BACKENDS:
        raise DeclarationError(
            f"{uri} has an unknown scheme {options.backend!r}", todo=f"Known are: {', '.join(sorted(SCHEMES))}."
        )
    module, _, name = BACKENDS[backend].partition(":")
    file_system: FileSystem = getattr(importlib.import_module(module), name)(uri, options)
    return file_system
