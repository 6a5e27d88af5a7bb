"""Connections to HDFS: Airflow's own ``webhdfs`` ones unchanged, and ``hdfs_native`` for the RPC protocol."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from airflow.configuration import conf
from airflow.sdk import BaseHook, Connection

from airflow_tf.core.errors import AirflowTfError, DeclarationError
from airflow_tf.storage.base import Uri
from airflow_tf.storage.client import probe
from airflow_tf.storage.kerberos import name_service_of_token
from airflow_tf.storage.options import WEBHDFS_PORT, StorageOptions

HDFS_PORT = 8020
_KERBEROS_EXTRAS = ("kerberos_principal", "kerberos_keytab", "kerberos_cache")
NATIVE_EXTRAS = ("config", "config_dir", *_KERBEROS_EXTRAS, "token_file")
"""Keys that ``extra`` of an ``hdfs_native`` connection may have."""

_NAME_SERVICE = "airflow-tf"


class HdfsHook(BaseHook):
    """Turns a connection into :class:`~airflow_tf.storage.options.StorageOptions`; does no I/O itself.

    :param hdfs_conn_id: id of a connection of type ``hdfs_native`` or ``webhdfs``; None: the URI alone, with the
        user and the Hadoop configuration (``HADOOP_CONF_DIR``) of the process.
    """

    conn_name_attr = "hdfs_conn_id"
    default_conn_name = "hdfs_default"
    conn_type = "hdfs_native"
    hook_name = "HDFS (native client)"

    def __init__(self, hdfs_conn_id: str | None = default_conn_name) -> None:
        super().__init__()
        self.hdfs_conn_id = hdfs_conn_id

    def storage_options(self, uri: str) -> StorageOptions:
        """Return how to reach ``uri``; a ``file`` URI needs no connection and ignores it.

        An ``hdfs`` or ``webhdfs`` URI names path and cluster. Over ``webhdfs`` the connection's hosts are asked, since
        a URI holds the RPC address; over ``hdfs_native`` the URI's own authority is, and the connection's hosts where
        it has none (``hdfs:///data``).

        :raises DeclarationError: if the connection is of another type or has unknown extras.
        """
        by_uri = StorageOptions.from_uri(uri)
        if self.hdfs_conn_id is None or by_uri.backend == "file":
            return replace(by_uri, kerberos=by_uri.backend == "webhdfs" and _airflow_uses_kerberos())
        connection = self.get_connection(self.hdfs_conn_id)
        if connection.conn_type == "webhdfs":
            return _webhdfs_options(connection)
        if connection.conn_type == self.conn_type:
            if by_uri.backend != "hdfs":
                raise DeclarationError(
                    f"{uri} cannot be read with connection {self.hdfs_conn_id!r}",
                    f"it is of type {self.conn_type}, which serves hdfs:// URIs",
                    "Write the URI with hdfs://, or use a connection of type webhdfs.",
                )
            return _native_options(connection, Uri.parse(uri))
        raise DeclarationError(
            f"connection {self.hdfs_conn_id!r} is of type {connection.conn_type!r}",
            "HDFS needs hdfs_native or webhdfs",
            "Change the connection, or name another one as hdfs_conn_id.",
        )

    def test_connection(self) -> tuple[bool, str]:
        """Ask for the root folder, within a time limit; used by Airflow's connection form."""
        cluster = "this connection"
        try:
            options = self.storage_options("hdfs:///")
            cluster = options.cluster
            found = probe("hdfs:///", options=options)
        except AirflowTfError as error:
            return False, f"{cluster}: {error}"
        return True, f"the file system answered in {found['seconds']} s"


def _native_options(connection: Connection, uri: Uri) -> StorageOptions:
    extra = connection.extra_dejson
    if unknown := sorted(set(extra) - set(NATIVE_EXTRAS)):
        raise DeclarationError(
            f"connection {connection.conn_id!r} has unknown extras: {', '.join(unknown)}",
            todo=f"Known are: {', '.join(NATIVE_EXTRAS)}.",
        )
    config = extra.get("config") or {}
    if isinstance(config, str):  # a form field holds text
        config = _parse(connection, config)
    if not isinstance(config, dict):
        raise DeclarationError(
            f"the extra config of connection {connection.conn_id!r} is not an object of Hadoop properties",
            todo='Write it like {"dfs.nameservices": "ns", ...}.',
        )
    properties = {str(key): str(value) for key, value in config.items()}
    hosts = [_with_port(host, connection.port, properties) for host in _hosts(connection)]
    url = ""
    if not uri.authority and len(hosts) > 1:
        name = name_service_of_token(extra["token_file"]) if extra.get("token_file") else ""
        url = f"hdfs://{name or _NAME_SERVICE}"
        properties = _name_service(name or _NAME_SERVICE, hosts) | properties
    elif not uri.authority and hosts:
        url = f"hdfs://{hosts[0]}"
    return StorageOptions(
        backend="hdfs",
        cluster=f"hdfs://{uri.authority or ','.join(hosts)}",
        url=url,
        user=connection.login or None,
        config=properties,
        config_dir=extra.get("config_dir"),
        token_file=extra.get("token_file"),
        **_kerberos(connection),
    )


def _kerberos(connection: Connection) -> dict[str, Any]:
    given = {key: connection.extra_dejson.get(key) or None for key in _KERBEROS_EXTRAS}
    if given["kerberos_keytab"] and not given["kerberos_principal"]:
        raise DeclarationError(
            f"connection {connection.conn_id!r} has kerberos_keytab without kerberos_principal",
            todo="Name the principal; klist -k KEYTAB shows what is in the keytab.",
        )
    return given


def _parse(connection: Connection, text: str) -> Any:  # noqa: ANN401 -- checked by the caller
    try:
        return json.loads(text)
    except ValueError as error:
        raise DeclarationError(
            f"the extra config of connection {connection.conn_id!r} is no JSON", str(error)
        ) from error


def _with_port(host: str, port: int | None, properties: dict[str, str]) -> str:
    """Append the port; a name service of the Hadoop properties has none."""
    if host in properties.get("dfs.nameservices", "").split(",") or ":" in host:
        return host
    return f"{host}:{port or HDFS_PORT}"


def _name_service(service: str, hosts: list[str]) -> dict[str, str]:
    """Return the Hadoop properties that make several NameNodes one highly available name."""
    names = {f"nn{index}": host for index, host in enumerate(hosts)}
    addresses = {f"dfs.namenode.rpc-address.{service}.{name}": host for name, host in names.items()}
    return addresses | {
        "dfs.nameservices": service,
        f"dfs.ha.namenodes.{service}": ",".join(names),
        f"dfs.client.failover.proxy.provider.{service}": (
            "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
        ),
    }


def _webhdfs_options(connection: Connection) -> StorageOptions:
    """Read what the provider's hook reads: hosts, port, login, password, schema and the TLS and HTTP extras.

    Unlike there certificates are verified unless ``verify`` says otherwise, and the extras of Kerberos are read.
    """
    extra, kerberos = connection.extra_dejson, _kerberos(connection)
    scheme = "https" if str(extra.get("use_ssl", False)).lower() == "true" else "http"
    path = f"/{connection.schema}" if connection.schema else ""
    urls = [f"{scheme}://{host}:{connection.port or WEBHDFS_PORT}{path}" for host in _hosts(connection)]
    if not urls:
        raise DeclarationError(f"connection {connection.conn_id!r} has no host", todo="Name the NameNodes.")
    return StorageOptions(
        backend="webhdfs",
        cluster=f"webhdfs://{','.join(_hosts(connection))}:{connection.port or WEBHDFS_PORT}",
        url=";".join(urls),
        user=connection.login or None,
        password=connection.password,
        kerberos=any(kerberos.values()) or _airflow_uses_kerberos(),
        **kerberos,
        verify=extra.get("verify", True),
        cert=extra.get("cert"),
        key=extra.get("key"),
        headers=extra.get("headers") or {},
        cookies=extra.get("cookies") or {},
    )


def _airflow_uses_kerberos() -> bool:
    """Tell whether Airflow's ticket renewer keeps a ticket; Airflow's commands name its cache to their processes."""
    return bool(conf.get("core", "security", fallback="") == "kerberos")


def _hosts(connection: Connection) -> list[str]:
    return [host.strip() for host in (connection.host or "").split(",") if host.strip()]
