"""HDFS with Kerberos: every way to authenticate, and every way in which that fails."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_tf.cli.doctor import Wishes, _hdfs
from airflow_tf.core.errors import DeclarationError, StorageError, StoragePermissionError, StorageUnavailableError
from airflow_tf.hooks.filesystems import get_fs
from airflow_tf.hooks.hdfs import HdfsHook
from airflow_tf.storage import client, kerberos
from airflow_tf.storage.base import Uri, read_all
from airflow_tf.storage.cache import Cache, boot_id
from airflow_tf.storage.options import StorageOptions
from airflow_tf.storage.progress import Patience, Reporter
from airflow_tf.storage.registry import open_file_system
from airflow_tf.storage.staging import Stager
from airflow_tf.testing.hdfs_secure import PROTECTIONS, SUPERUSER, SecureHdfsCluster
from airflow_tf.testing.kdc import REALM
from tests.storage.storage_helpers import Staging, eventually

DATA = os.urandom(300_000)
SHORT_SECONDS = 3


@pytest.fixture(scope="module")
def secure() -> Iterator[SecureHdfsCluster]:
    with SecureHdfsCluster() as cluster:
        uri = Uri.parse(f"{cluster.uri}/in/1.csv")
        files = open_file_system(uri, superuser(cluster))
        files.make_dirs("/in")
        files.write(uri.path, [DATA])
        yield cluster


def superuser(cluster: SecureHdfsCluster, **changes: Any) -> StorageOptions:
    known = {"kerberos_principal": f"{SUPERUSER}@{REALM}", "kerberos_keytab": str(cluster.superuser_keytab)}
    return StorageOptions("hdfs", **(known | changes))


def ticket_of(cluster: SecureHdfsCluster) -> Path:
    return cluster.kdc.ticket(SUPERUSER, cluster.superuser_keytab)


def web(cluster: SecureHdfsCluster, **changes: Any) -> StorageOptions:
    given: dict[str, Any] = {"url": cluster.webhdfs_url, "kerberos": True, "verify": str(cluster.certificate)}
    return StorageOptions("webhdfs", **(given | changes))


def by_keytab(cluster: SecureHdfsCluster) -> StorageOptions:
    return superuser(cluster)


def by_ticket(cluster: SecureHdfsCluster) -> StorageOptions:
    return StorageOptions("hdfs", kerberos_cache=str(ticket_of(cluster)))


def by_ticket_of_a_principal(cluster: SecureHdfsCluster) -> StorageOptions:
    return StorageOptions("hdfs", kerberos_principal=SUPERUSER, kerberos_cache=str(ticket_of(cluster)))


def by_token(cluster: SecureHdfsCluster) -> StorageOptions:
    return StorageOptions("hdfs", token_file=str(cluster.delegation_token(ticket_of(cluster))))


def by_webhdfs(cluster: SecureHdfsCluster) -> StorageOptions:
    return web(cluster, kerberos_cache=str(ticket_of(cluster)))


WAYS = (by_keytab, by_ticket, by_ticket_of_a_principal, by_token, by_webhdfs)


@pytest.mark.hdfs
@pytest.mark.parametrize("way", WAYS)
def test_files_are_staged_and_written_by(
    way: Callable[[SecureHdfsCluster], StorageOptions], secure: SecureHdfsCluster, staging: Staging, tmp_path: Path
) -> None:
    options = way(secure)
    staged = staging(f"{secure.uri}/in", options=options)
    assert (Path(staged.folder) / "1.csv").read_bytes() == DATA
    (tmp_path / "model").write_bytes(DATA)
    target = f"{secure.uri}/out-{uuid.uuid4().hex}"
    client.upload(tmp_path / "model", target, options=options, overwrite=False, on_progress=staging.lines.append)
    uri = Uri.parse(target)
    assert read_all(open_file_system(uri, superuser(secure)), uri.path) == DATA


@pytest.mark.hdfs
@pytest.mark.parametrize("protection", PROTECTIONS[1:])
def test_data_is_moved_under_the_protection_that_the_datanode_demands(
    protection: str, secure: SecureHdfsCluster, staging: Staging
) -> None:
    secure.protect(protection)
    try:
        staged = staging(f"{secure.uri}/in", options=superuser(secure))
        assert (Path(staged.folder) / "1.csv").read_bytes() == DATA
        files = open_file_system(Uri.parse(f"{secure.uri}/"), superuser(secure))
        files.write(f"/{protection}", [DATA])
        assert read_all(files, f"/{protection}") == DATA
    finally:
        secure.protect(PROTECTIONS[0])


def no_ticket(cluster: SecureHdfsCluster) -> StorageOptions:
    return StorageOptions("hdfs", kerberos_cache=str(cluster.kdc.folder / "nothing"))


def expired_ticket(cluster: SecureHdfsCluster) -> StorageOptions:
    name = f"late-{uuid.uuid4().hex}"
    cache = cluster.kdc.ticket(name, cluster.kdc.add(name, lifetime_seconds=1))
    outlive(1)
    return StorageOptions("hdfs", kerberos_cache=str(cache))


def outlive(lifetime_seconds: int) -> None:
    """Wait until a ticket that was given just now has expired, whole seconds counted."""
    end = time.time() + lifetime_seconds + 1
    eventually(lambda: time.time() > end)


def unknown_principal(cluster: SecureHdfsCluster) -> StorageOptions:
    return superuser(cluster, kerberos_principal=f"nobody@{REALM}")


def old_keytab(cluster: SecureHdfsCluster) -> StorageOptions:
    old = shutil.copy(cluster.kdc.add("changed"), cluster.kdc.folder / "old.keytab")
    cluster.kdc.change_key("changed")
    return superuser(cluster, kerberos_principal="changed", kerberos_keytab=str(old))


def missing_keytab(cluster: SecureHdfsCluster) -> StorageOptions:
    return superuser(cluster, kerberos_keytab="/missing.keytab")


def ticket_of_another(cluster: SecureHdfsCluster) -> StorageOptions:
    return StorageOptions("hdfs", kerberos_principal="ann", kerberos_cache=str(ticket_of(cluster)))


def no_rights(cluster: SecureHdfsCluster) -> StorageOptions:
    keytab = cluster.kdc.add("guest")
    return superuser(cluster, kerberos_principal="guest", kerberos_keytab=str(keytab))


def no_token(cluster: SecureHdfsCluster) -> StorageOptions:
    file = cluster.folder / "text.token"
    file.write_text("text")
    return StorageOptions("hdfs", token_file=str(file))


def token_of_another_cluster(cluster: SecureHdfsCluster) -> StorageOptions:
    file = cluster.folder / "other.token"
    file.write_bytes(b"HDTS\x00\x00\x00")
    return StorageOptions("hdfs", token_file=str(file))


def webhdfs_without_a_ticket(cluster: SecureHdfsCluster) -> StorageOptions:
    return web(cluster, kerberos_cache=str(cluster.kdc.folder / "nothing"))


def webhdfs_with_an_expired_ticket(cluster: SecureHdfsCluster) -> StorageOptions:
    return web(cluster, kerberos_cache=expired_ticket(cluster).kerberos_cache)


def webhdfs_with_a_mere_name(cluster: SecureHdfsCluster) -> StorageOptions:
    return web(cluster, kerberos=False, user=SUPERUSER)


REFUSALS = [
    (no_ticket, "there is no Kerberos ticket .*nothing", "kinit"),
    (expired_ticket, "the Kerberos ticket has expired .*late", "kinit"),
    (unknown_principal, "the keytab gives no ticket for this principal .*nobody@", "kinit -k -t"),
    (old_keytab, "refused the key of the keytab.*old.keytab", "kinit -k -t"),
    (missing_keytab, "/missing.keytab, which this user cannot read", "kinit -k -t"),
    (ticket_of_another, "the ticket cache holds a ticket of another principal .*ann", "kinit"),
    (no_rights, "Permission denied: user=guest", "Grant"),
    (no_token, "it is no file of Hadoop tokens", "hdfs fetchdt"),
    (token_of_another_cluster, "no token that fits and is valid in .*other.token", "kinit"),
    (webhdfs_without_a_ticket, "there is no Kerberos ticket .*nothing", "kinit"),
    (webhdfs_with_an_expired_ticket, "the Kerberos ticket has expired", "kinit"),
    (webhdfs_with_a_mere_name, "Check your credentials", "another connection"),
]


@pytest.mark.hdfs
@pytest.mark.parametrize(("refused", "why", "todo"), REFUSALS)
def test_a_call_is_refused_at_once_and_says_what_to_do_for(
    refused: Callable[[SecureHdfsCluster], StorageOptions],
    why: str,
    todo: str,
    secure: SecureHdfsCluster,
    tmp_path: Path,
) -> None:
    options = refused(secure)
    (tmp_path / "model").write_bytes(DATA)
    with pytest.raises(StoragePermissionError, match=why) as error:
        client.upload(
            tmp_path / "model",
            f"{secure.uri}/refused/model",
            options=options,
            overwrite=False,
            on_progress=lambda _text: None,
            stall_seconds=20.0,
        )
    assert todo in error.value.todo
    with pytest.raises(StorageError):
        open_file_system(Uri.parse(f"{secure.uri}/"), superuser(secure)).stat("/refused")


@pytest.mark.hdfs
def test_a_server_without_a_trusted_certificate_is_refused(secure: SecureHdfsCluster) -> None:
    options = web(secure, kerberos_cache=str(ticket_of(secure)), verify=True)
    with pytest.raises(StorageUnavailableError, match="CERTIFICATE_VERIFY_FAILED"):
        client.probe(f"{secure.uri}/in", options=options, stall_seconds=10.0)


@pytest.mark.hdfs
def test_a_client_that_knows_nothing_of_kerberos_is_told(secure: SecureHdfsCluster) -> None:
    with pytest.raises(StorageUnavailableError, match=r"without hadoop\.security\.authentication"):
        client.probe(f"{secure.uri}/in", options=StorageOptions("hdfs"), stall_seconds=5.0)


class Proxy:
    """Hands a port on to another one, and can break all connections."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._pairs: list[socket.socket] = []
        self.accepted = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):  # closed
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self.accepted += 1
                self._pairs += [near, far]
                for source, sink in ((near, far), (far, near)):
                    threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    @staticmethod
    def _copy(source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):  # broken by the test
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        for end in self._pairs:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._server.close()
        self.cut()
        for end in self._pairs:
            end.close()


@pytest.fixture
def proxy(secure: SecureHdfsCluster) -> Iterator[Proxy]:
    started = Proxy(int(secure.uri.rpartition(":")[2]))
    yield started
    started.close()


class Outliving:
    """A file system whose first stream outlives the ticket, and then loses the NameNode and breaks."""

    def __init__(self, inner: Any, wait: Callable[[], None]) -> None:
        self._inner, self._wait = inner, wait
        self.broken = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def read(self, path: str, offset: int, length: int) -> Iterator[bytes]:
        for chunk in self._inner.read(path, offset, length):
            yield chunk
            if not self.broken:
                self.broken = True
                self._wait()
                raise StorageUnavailableError("the stream broke")


def copy_beyond_the_ticket(options: StorageOptions, wait: Callable[[], None], proxy: Proxy, folder: Path) -> bytes:
    uri = Uri.parse(f"hdfs://localhost:{proxy.port}/in")
    with Path(os.devnull).open("wb") as events:
        reporter = Reporter(events.fileno())
        stager = Stager(
            uri=uri,
            options=options,
            files=Outliving(open_file_system(uri, options), wait),
            cache=Cache(folder / "cache", 2**30, boot_id(), reporter.tick),
            reporter=reporter,
            patience=Patience(20.0, reporter.note),
        )
        staged = stager.run(folder / "run" / "data")
    return (Path(staged.folder) / "1.csv").read_bytes()


@pytest.mark.hdfs
def test_a_copy_that_outlives_its_ticket_goes_on_with_a_new_one_from_the_keytab(
    secure: SecureHdfsCluster, proxy: Proxy, tmp_path: Path
) -> None:
    keytab = secure.kdc.add("short", lifetime_seconds=SHORT_SECONDS)

    def wait() -> None:
        outlive(SHORT_SECONDS)
        proxy.cut()

    options = superuser(secure, kerberos_principal="short", kerberos_keytab=str(keytab))
    assert copy_beyond_the_ticket(options, wait, proxy, tmp_path) == DATA
    assert proxy.accepted > 1


@pytest.mark.hdfs
def test_a_copy_that_outlives_a_ticket_without_keytab_ends_and_says_so(
    secure: SecureHdfsCluster, proxy: Proxy, tmp_path: Path
) -> None:
    keytab = secure.kdc.add("brief", lifetime_seconds=SHORT_SECONDS)
    cache = secure.kdc.ticket("brief", keytab)

    def wait() -> None:
        outlive(SHORT_SECONDS)
        proxy.cut()

    with pytest.raises(StoragePermissionError, match="ticket has expired"):
        options = StorageOptions("hdfs", kerberos_principal="brief", kerberos_cache=str(cache))
        copy_beyond_the_ticket(options, wait, proxy, tmp_path)


@pytest.mark.hdfs
def test_a_connection_with_a_keytab_serves_the_hook_the_doctor_and_airflows_paths(
    secure: SecureHdfsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = secure.uri.removeprefix("hdfs://").split(":")
    extra = {"kerberos_principal": SUPERUSER, "kerberos_keytab": str(secure.superuser_keytab)}
    declared = {"conn_type": "hdfs_native", "host": host, "port": int(port), "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SECURE", json.dumps(declared))
    good, message = HdfsHook("secure").test_connection()
    assert good, message
    assert get_fs("secure").cat_file("/in/1.csv") == DATA
    assert f"keytab of {SUPERUSER}" in _hdfs(Wishes(hdfs_conn_id="secure"))


@pytest.mark.hdfs
def test_airflows_kerberos_mode_serves_webhdfs_connections_and_uris(
    secure: SecureHdfsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = secure.webhdfs_url.removeprefix("https://").split(":")
    extra = {"use_ssl": True, "verify": str(secure.certificate)}
    declared = {"conn_type": "webhdfs", "host": host, "port": int(port), "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_WEB", json.dumps(declared))
    monkeypatch.setenv("AIRFLOW__CORE__SECURITY", "kerberos")
    monkeypatch.setenv("KRB5CCNAME", str(ticket_of(secure)))  # as Airflow's own commands set it
    options = HdfsHook("web").storage_options(f"{secure.uri}/in")
    assert client.probe(f"{secure.uri}/in", options=options)["is_dir"]
    assert HdfsHook(None).storage_options(f"swebhdfs://{host}:{port}/in").kerberos


@pytest.mark.hdfs
def test_a_webhdfs_connection_takes_tickets_by_a_keytab_of_its_own(
    secure: SecureHdfsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, port = secure.webhdfs_url.removeprefix("https://").split(":")
    extra = {"use_ssl": True, "verify": str(secure.certificate), "kerberos_keytab": str(secure.superuser_keytab)}
    declared = {"conn_type": "webhdfs", "host": host, "port": int(port), "extra": extra}
    guest = secure.kdc.ticket("stranger", secure.kdc.add("stranger"))
    monkeypatch.setenv("KRB5CCNAME", str(guest))  # a ticket of somebody else does not count
    for principal, why in (
        (f"{SUPERUSER}@{REALM}", ""),
        (f"nobody@{REALM}", "neither keytab nor ticket cache has .*nobody@"),
    ):
        extra["kerberos_principal"] = principal
        monkeypatch.setenv("AIRFLOW_CONN_WEB", json.dumps(declared))
        options = HdfsHook("web").storage_options(f"{secure.uri}/in")
        if not why:
            assert client.probe(f"{secure.uri}/in", options=options)["is_dir"]
            continue
        with pytest.raises(StoragePermissionError, match=why) as error:
            client.probe(f"{secure.uri}/in", options=options)
        assert "kinit -k -t" in error.value.todo


@pytest.mark.hdfs
def test_a_token_of_a_name_service_serves_its_name_and_a_connection_with_its_namenodes(
    secure: SecureHdfsCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = secure.uri.removeprefix("hdfs://").replace("localhost", "127.0.0.1")
    data = secure.delegation_token(ticket_of(secure)).read_bytes()
    old, new = address.encode(), b"ha-hdfs:ns"
    assert bytes([len(old)]) + old in data
    token = secure.folder / "ns.token"
    token.write_bytes(data.replace(bytes([len(old)]) + old, bytes([len(new)]) + new))
    monkeypatch.setenv("KRB5CCNAME", str(secure.kdc.folder / "nothing"))
    # One NameNode by two names: a cluster with Kerberos and two of them would take half a minute to start.
    both = f"{address},{secure.uri.removeprefix('hdfs://')}"
    declared: dict[str, Any] = {"conn_type": "hdfs_native", "host": both, "extra": {"token_file": str(token)}}
    monkeypatch.setenv("AIRFLOW_CONN_HA", json.dumps(declared))
    options = HdfsHook("ha").storage_options("hdfs:///in")
    assert options.url == "hdfs://ns"
    assert client.probe("hdfs:///in", options=options)["is_dir"]
    monkeypatch.setenv(
        "AIRFLOW_CONN_HA",
        json.dumps(declared | {"host": "", "extra": {"token_file": str(token), "config": options.config}}),
    )
    assert client.probe("hdfs://ns/in", options=HdfsHook("ha").storage_options("hdfs://ns/in"))["is_dir"]


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"HDTS\x00\x01\x0aha-hdfs:ns0kind\x0aha-hdfs:ns", "ns"),
        (b"HDTS\x00\x02\x0aha-hdfs:n1\x0aha-hdfs:n2", ""),
        (b"HDTS\x00\x01\x0e127.0.0.1:8020", ""),
        (b"text", ""),
    ],
)
def test_the_name_service_of_tokens_is_known_where_there_is_one(data: bytes, name: str, tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(data)
    assert kerberos.name_service_of_token(str(tmp_path / "token")) == name


@pytest.mark.hdfs
def test_a_kdc_that_does_not_answer_is_waited_for_and_named(secure: SecureHdfsCluster) -> None:
    keytab = secure.kdc.add("waiting")
    options = superuser(secure, kerberos_principal="waiting", kerberos_keytab=str(keytab))
    secure.kdc.kill()
    try:
        with pytest.raises(StorageUnavailableError, match="Cannot contact any KDC"):
            client.probe(f"{secure.uri}/in", options=options, stall_seconds=5.0)
    finally:
        secure.kdc.serve()


@pytest.mark.parametrize("kind", ["hdfs_native", "webhdfs"])
def test_a_keytab_without_a_principal_is_refused(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    declared = {"conn_type": kind, "host": "nn", "extra": {"kerberos_keytab": "/k"}}
    monkeypatch.setenv("AIRFLOW_CONN_STORE", json.dumps(declared))
    with pytest.raises(DeclarationError, match="kerberos_keytab without kerberos_principal"):
        HdfsHook("store").storage_options("hdfs:///x")


@pytest.mark.parametrize(
    ("options", "environment", "set_"),
    [
        (StorageOptions("hdfs"), {}, False),
        (StorageOptions("hdfs", kerberos_cache="/c"), {}, True),
        (StorageOptions("hdfs", token_file="/t"), {}, True),
        (StorageOptions("hdfs", kerberos_cache="/c", config_dir="/etc/hadoop"), {}, False),
        (StorageOptions("hdfs", kerberos_cache="/c"), {"HADOOP_CONF_DIR": "/etc/hadoop"}, False),
    ],
)
def test_hadoop_properties_of_kerberos_are_set_where_no_configuration_has_them(
    options: StorageOptions, environment: dict[str, str], set_: bool
) -> None:
    assert bool(kerberos.properties(options, environment)) is set_
