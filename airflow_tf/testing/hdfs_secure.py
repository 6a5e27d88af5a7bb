"""An HDFS with Kerberos for tests: RPC by SASL, block tokens, protected data transfer, WebHDFS by HTTPS and SPNEGO.

::

    with SecureHdfsCluster() as cluster:
        keytab = cluster.kdc.add("alice")
        ...  # cluster.uri, cluster.client_properties(), cluster.certificate
"""

from __future__ import annotations

import contextlib
import os
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import requests

from airflow_tf.core.errors import AirflowTfError
from airflow_tf.storage.spnego import SpnegoAuth, SpnegoError
from airflow_tf.testing.hadoop import find_program, write_properties
from airflow_tf.testing.hdfs import HdfsCluster
from airflow_tf.testing.kdc import REALM, Kdc

SUPERUSER = "hdfs"
PROTECTIONS = ("authentication", "integrity", "privacy")

_SERVICES = ("hdfs/localhost", "HTTP/localhost")
_FETCH_TOKEN = "org.apache.hadoop.hdfs.tools.DelegationTokenFetcher"  # noqa: S105 -- a class
_TOOL_SECONDS = 120.0
_TAIL_BYTES = 2000
_DAY_SECONDS = 86400


class SecureHdfsCluster(HdfsCluster):
    """A NameNode, one DataNode and a :class:`~airflow_tf.testing.kdc.Kdc`, all as ``localhost``.

    User ``hdfs`` (keytab :attr:`superuser_keytab`) is the superuser. The realm's variables are set in this process
    while the cluster runs, so that clients in it and processes that it starts use the realm.
    """

    datanode_keys: ClassVar[dict[str, str]] = {"data": "address", "ipc": "ipc.address", "http": "https.address"}

    def __init__(self, **options: Any) -> None:
        super().__init__(1, **options)
        self.kdc = Kdc()
        self.protection = PROTECTIONS[0]
        self._session = requests.Session()
        self._environment = contextlib.ExitStack()

    @property
    def uri(self) -> str:
        """URI of the file system; the host is the one of the NameNode's principal."""
        return f"hdfs://localhost:{self._ports['namenode.rpc']}"

    @property
    def webhdfs_url(self) -> str:
        """URL of the NameNode's HTTPS server, whose certificate is :attr:`certificate`."""
        return f"https://localhost:{self._ports['namenode.http']}"

    @property
    def certificate(self) -> Path:
        """The self-signed certificate of the HTTPS servers."""
        return self.folder / "conf" / "server.pem"

    @property
    def superuser_keytab(self) -> Path:
        """Keytab of the superuser."""
        return self.kdc.folder / f"{SUPERUSER}.keytab"

    def client_properties(self) -> dict[str, str]:
        """Return the Hadoop properties that a client of this cluster needs."""
        return {"hadoop.security.authentication": "kerberos", "dfs.data.transfer.protection": ",".join(PROTECTIONS)}

    def protect(self, protection: str) -> None:
        """Start the DataNode anew with another protection of the data transfer."""
        self.protection = protection
        self.restart(self.names[-1])

    def delegation_token(self, cache: Path) -> Path:
        """Fetch a token with the ticket in ``cache``, as ``hdfs fetchdt`` does, and return its file."""
        target = self.folder / f"{cache.stem}.token"
        done = subprocess.run(
            [*self._command, _FETCH_TOKEN, str(target)],
            env=os.environ | self.kdc.environment | {"KRB5CCNAME": str(cache)},
            capture_output=True,
            text=True,
            timeout=_TOOL_SECONDS,
            check=False,
        )
        if done.returncode != 0 or not target.exists():
            raise AirflowTfError("No delegation token was fetched", (done.stdout + done.stderr)[-_TAIL_BYTES:])
        return target

    def stop(self) -> None:
        """Kill all processes, the KDC included, and remove their folders."""
        super().stop()
        self.kdc.stop()
        self._environment.close()

    def _prepare(self) -> None:
        self.kdc.start()
        self.kdc.add(*_SERVICES)
        self.kdc.add(SUPERUSER)
        self._environment.enter_context(set_variables(self.kdc.environment))
        self._make_certificate()

    def _make_certificate(self) -> None:
        keytool = find_program("keytool", "JAVA_HOME", "openjdk-17-jre-headless")
        folder, password = self.folder / "conf", secrets.token_hex()
        store = ["-alias", "server", "-keystore", str(folder / "server.p12"), "-storepass:env", "AIRFLOW_TF_STORE"]
        make = ["-keyalg", "EC", "-dname", "CN=localhost", "-ext", "san=dns:localhost,ip:127.0.0.1"]
        for arguments in (
            ["-genkeypair", *make, "-storetype", "PKCS12"],
            ["-exportcert", "-rfc", "-file", str(self.certificate)],
        ):
            subprocess.run(
                [keytool, *arguments, *store],
                env=os.environ | {"AIRFLOW_TF_STORE": password},
                check=True,
                capture_output=True,
                timeout=_TOOL_SECONDS,
            )
        server = {"location": str(folder / "server.p12"), "type": "pkcs12", "password": password}
        properties = {f"ssl.server.keystore.{name}": value for name, value in server.items()}
        write_properties(folder / "ssl-server.xml", properties | {"ssl.server.keystore.keypassword": password})
        write_properties(folder / "ssl-client.xml", {})

    def _datanode_options(self) -> dict[str, str]:
        return {"dfs.data.transfer.protection": self.protection}

    def _jvm_options(self) -> list[str]:
        return [f"-Djava.security.krb5.conf={self.kdc.configuration}"]

    def _namenodes(self) -> dict[str, str]:
        keytab = str(self.kdc.folder / f"{_SERVICES[0].replace('/', '-')}.keytab")
        rpc, web = (f"{service}@{REALM}" for service in _SERVICES)
        (self.folder / "conf" / "secret").write_text(secrets.token_hex())
        return super()._namenodes() | {
            "hadoop.security.authentication": "kerberos",
            "hadoop.security.auth_to_local": "RULE:[2:$1@$0](hdfs@.*)s/@.*// DEFAULT",
            # Without these WebHDFS of a secure cluster believes whatever user.name says.
            "hadoop.http.authentication.type": "kerberos",
            "hadoop.http.authentication.kerberos.principal": web,
            "hadoop.http.authentication.kerberos.keytab": keytab,
            "hadoop.http.authentication.signature.secret.file": str(self.folder / "conf" / "secret"),
            "dfs.web.authentication.kerberos.principal": web,
            "dfs.web.authentication.kerberos.keytab": keytab,
            "dfs.block.access.token.enable": "true",
            "dfs.http.policy": "HTTPS_ONLY",
            "dfs.namenode.https-address": f"localhost:{self._ports['namenode.http']}",
            "dfs.namenode.kerberos.principal": rpc,
            "dfs.namenode.keytab.file": keytab,
            "dfs.datanode.kerberos.principal": rpc,
            "dfs.datanode.keytab.file": keytab,
            "dfs.datanode.hostname": "localhost",
            "dfs.replication": "1",
        }

    def _begin(self) -> None:
        self._cache = self.kdc.ticket(SUPERUSER, self.superuser_keytab, lifetime_seconds=_DAY_SECONDS)
        self._session.trust_env = False
        self._session.verify = str(self.certificate)
        super()._begin()

    def _bean(self, name: str, query: str) -> dict[str, Any]:
        address = f"localhost:{self._ports[f'{name}.http']}"
        try:
            with set_variables({"KRB5CCNAME": str(self._cache)}):
                answer = self._session.get(
                    f"https://{address}/jmx", params={"qry": query}, auth=SpnegoAuth({address}), timeout=2
                )
            beans: list[dict[str, Any]] = answer.json()["beans"]
        except (requests.RequestException, SpnegoError, ValueError, KeyError):
            return {}
        return beans[0] if beans else {}


@contextlib.contextmanager
def set_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process's environment for a while."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
