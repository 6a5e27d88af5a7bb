"""``ObjectStoragePath("hdfs://…", conn_id=…)``: an fsspec file system made of a connection.

It runs in the caller's process, so a NameNode that hangs hangs the call; staging and publishing do not use it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from airflow_tf.core.errors import AirflowTfError, DeclarationError
from airflow_tf.hooks.hdfs import HDFS_PORT, HdfsHook
from airflow_tf.storage.kerberos import address_of_token, process_variables, properties

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

schemes = ["hdfs", "viewfs"]
"""Read by Airflow: the URI schemes for which :func:`get_fs` is called."""


def get_fs(conn_id: str | None, storage_options: dict[str, Any] | None = None) -> AbstractFileSystem:
    """Return the file system of a connection of type ``hdfs_native``.

    Airflow does not tell the URI, so the NameNodes come from the connection; without one from ``host`` and ``port`` of
    ``storage_options`` or from the Hadoop configuration of the process (``HADOOP_CONF_DIR``). Other storage options
    are Hadoop client properties.
    """
    try:
        from hdfs_native import Client
        from hdfs_native.fsspec import HdfsFileSystem
    except ImportError as error:
        raise AirflowTfError(
            "hdfs:// cannot be opened", "hdfs-native is not installed", "Install airflow-tf[hdfs]."
        ) from error
    given = {str(key): value for key, value in (storage_options or {}).items()}
    host, port = given.pop("host", ""), given.pop("port", "")
    options = HdfsHook(conn_id).storage_options(f"hdfs://{host}:{port}/" if port else f"hdfs://{host}/")
    if options.backend != "hdfs":
        raise DeclarationError(
            f"connection {conn_id!r} cannot serve an ObjectStoragePath",
            "it is of type webhdfs",
            "Use one of type hdfs_native, or the staging operator.",
        )
    os.environ.update(process_variables(options))  # the only way to tell hdfs-native
    url = options.url or (f"hdfs://{host}:{port}" if port else f"hdfs://{host}")
    # Its own client is replaced; without a host it would ask for a Hadoop configuration that nobody needs.
    files = HdfsFileSystem(host or "localhost", int(port or HDFS_PORT), skip_instance_cache=True)
    files.client = Client(
        address_of_token(url, options),
        properties(options) | options.config | {key: str(value) for key, value in given.items()},
        options.config_dir,
        kerberos_principal=options.kerberos_principal,
        kerberos_keytab=options.kerberos_keytab,
        kerberos_cache=options.kerberos_cache if options.kerberos_principal else None,
    )
    return files
