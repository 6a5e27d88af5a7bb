"""How to reach a file system: made from a connection above, handed to the mover as JSON on its standard input."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_tf.storage.base import Uri

WEBHDFS_PORT = 9870
SCHEMES = {"hdfs": "hdfs", "viewfs": "hdfs", "webhdfs": "webhdfs", "swebhdfs": "webhdfs", "file": "file"}


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """A backend's name and what its client needs; ``repr`` hides what may be secret.

    :param backend: name in :mod:`airflow_tf.storage.registry`.
    :param cluster: what identifies the cluster in the cache, if not the URI's authority.
    :param url: ``hdfs``: URL of the file system, if not the URI's own; ``webhdfs``: HTTP URLs joined by ``;``.
    :param user: user of simple authentication, else the process's own.
    :param config: Hadoop client properties (``hdfs``).
    :param config_dir: folder with ``core-site.xml`` and ``hdfs-site.xml`` (``hdfs``).
    :param kerberos: SPNEGO for ``webhdfs``.
    :param kerberos_principal: whose ticket is used; needed with a keytab.
    :param kerberos_cache: ticket cache, if not the process's own.
    :param token_file: Hadoop delegation tokens, used instead of a ticket (``hdfs``).
    :param verify: verify TLS certificates; a path names a CA bundle.
    :param replication: of files that are written; None: the cluster's own.
    :param block_bytes: of files that are written; None: the cluster's own.
    """

    backend: str
    cluster: str = ""
    url: str = ""
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    config: dict[str, str] = field(default_factory=dict, repr=False)
    config_dir: str | None = None
    kerberos: bool = False
    kerberos_principal: str | None = None
    kerberos_keytab: str | None = None
    kerberos_cache: str | None = None
    token_file: str | None = None
    verify: bool | str = True
    cert: str | None = None
    key: str | None = None
    headers: dict[str, str] = field(default_factory=dict, repr=False)
    cookies: dict[str, str] = field(default_factory=dict, repr=False)
    replication: int | None = None
    block_bytes: int | None = None

    @classmethod
    def from_uri(cls, text: str) -> StorageOptions:
        """Return the options that a URI alone gives: no credentials but those of the process.

        :raises DeclarationError: if the scheme is unknown.
        """
        uri = Uri.parse(text)
        backend = SCHEMES.get(uri.scheme, uri.scheme)
        if backend != "webhdfs":
            return cls(backend=backend)
        host = uri.authority if ":" in uri.authority else f"{uri.authority}:{WEBHDFS_PORT}"
        return cls(backend=backend, url=f"{'https' if uri.scheme == 'swebhdfs' else 'http'}://{host}")

    def to_json(self) -> dict[str, Any]:
        """Return the fields as plain JSON, secrets included: for a pipe, never for a log."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> StorageOptions:
        """Rebuild options written by :meth:`to_json`."""
        return cls(**data)
