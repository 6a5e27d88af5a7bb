"""A real Kerberos server (MIT's, from Debian's packages) for tests, on a loopback port, with its own realm.

::

    with Kdc() as kdc:
        keytab = kdc.add("alice")
        cache = kdc.ticket("alice", keytab, lifetime_seconds=60)
        ...  # processes started with kdc.environment use this realm
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from airflow_tf.core.errors import AirflowTfError
from airflow_tf.testing.private import free_ports, make_folder, remove_abandoned_folders, start_with_owner

REALM = "AIRFLOW-TF.TEST"

_PREFIX = "airflow_tf-kdc-"
_PROGRAM_SECONDS = 60.0
_SYSTEM_FOLDERS = ("/usr/sbin", "/usr/local/sbin", "/sbin")  # not on the PATH of most users

# rdns and dns_canonicalize_hostname: names are taken as they are written, whatever a name server says.
_KRB5_CONF = """
[libdefaults]
 default_realm = {realm}
 dns_lookup_realm = false
 dns_lookup_kdc = false
 rdns = false
 dns_canonicalize_hostname = false
 udp_preference_limit = 1
 default_ccache_name = FILE:{folder}/no-ticket
 default_client_keytab_name = FILE:{folder}/no-keytab
[realms]
 {realm} = {{
  kdc = 127.0.0.1:{port}
 }}
[domain_realm]
 localhost = {realm}
"""
_KDC_CONF = """
[kdcdefaults]
 kdc_listen = 127.0.0.1:{port}
 kdc_tcp_listen = 127.0.0.1:{port}
[realms]
 {realm} = {{
  database_name = {folder}/principal
  key_stash_file = {folder}/stash
  acl_file = {folder}/acl
  max_life = 1d
  supported_enctypes = aes256-cts-hmac-sha1-96:normal aes128-cts-hmac-sha1-96:normal
 }}
[logging]
 kdc = FILE:{folder}/kdc.log
"""


class Kdc:
    """A key distribution centre in a private folder; it dies with the thread that called :meth:`start`."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._lock: IO[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def folder(self) -> Path:
        """Private folder with configuration, database, keytabs and ``kdc.log``."""
        if self._folder is None:
            raise AirflowTfError("The test KDC is not running", todo="Call start() first.")
        return self._folder

    @property
    def configuration(self) -> Path:
        """The ``krb5.conf`` of the realm."""
        return self.folder / "krb5.conf"

    @property
    def environment(self) -> dict[str, str]:
        """Variables with which a process uses this realm; without a ticket, until ``KRB5CCNAME`` names one."""
        return {"KRB5_CONFIG": str(self.configuration), "KRB5_KDC_PROFILE": str(self.folder / "kdc.conf")}

    def start(self) -> Self:
        """Make an empty realm and serve it.

        :raises AirflowTfError: if the programs are missing or the server does not answer.
        """
        remove_abandoned_folders(_PREFIX)
        self._folder, self._lock = make_folder(_PREFIX)
        atexit.register(self.stop)
        try:
            values = {"realm": REALM, "folder": self._folder, "port": free_ports(["kdc"])["kdc"]}
            self.configuration.write_text(_KRB5_CONF.format(**values))
            (self._folder / "kdc.conf").write_text(_KDC_CONF.format(**values))
            self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")
            self._probe = self.add("probe")
            self.serve()
        except BaseException:
            self.stop()
            raise
        return self

    def kill(self) -> None:
        """Kill the server; :meth:`serve` starts it again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def serve(self) -> None:
        """Start the server and wait until it gives tickets."""
        with (self.folder / "krb5kdc.out").open("ab") as log:
            command = [_find("krb5kdc"), "-n", "-r", REALM]
            self._process = start_with_owner(command, log, os.environ | self.environment)
        deadline = time.monotonic() + _PROGRAM_SECONDS
        while True:
            try:
                self.ticket("probe", self._probe)
            except AirflowTfError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise
                time.sleep(0.05)
            else:
                return

    def stop(self) -> None:
        """Kill the server and remove the folder; does nothing if it does not run."""
        atexit.unregister(self.stop)
        self.kill()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def add(self, *principals: str, lifetime_seconds: int | None = None) -> Path:
        """Add principals with random keys and return a keytab with all of them.

        :param lifetime_seconds: longest lifetime of their tickets, whatever is asked for.
        """
        keytab = self.folder / f"{principals[0].replace('/', '-')}.keytab"
        limit = ["-maxlife", f"{lifetime_seconds} seconds"] if lifetime_seconds else []
        for name in principals:
            self._run("kadmin.local", "-r", REALM, "addprinc", *limit, "-randkey", name)
            self._run("kadmin.local", "-r", REALM, "ktadd", "-k", str(keytab), name)
        return keytab

    def ticket(self, principal: str, keytab: Path, lifetime_seconds: int = 3600) -> Path:
        """Get a ticket and return its cache, a file for ``KRB5CCNAME``."""
        cache = self.folder / f"{principal.replace('/', '-')}.cache"
        lifetime = ["-l", f"{lifetime_seconds}s"]
        self._run("kinit", "-k", "-t", str(keytab), *lifetime, "-c", str(cache), f"{principal}@{REALM}")
        return cache

    def change_key(self, principal: str) -> None:
        """Give a principal another key: its keytabs become useless."""
        self._run("kadmin.local", "-r", REALM, "cpw", "-randkey", principal)

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [_find(program), *arguments],
            env=os.environ | self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROGRAM_SECONDS,
            check=False,
        )
        if done.returncode != 0:
            raise AirflowTfError(f"{program} failed", (done.stdout + done.stderr).strip())


def _find(program: str) -> str:
    found = shutil.which(program) or shutil.which(program, path=":".join(_SYSTEM_FOLDERS))
    if found is None:
        raise AirflowTfError(
            f"{program} is missing",
            "the test KDC needs it and it is not on PATH",
            "Install MIT Kerberos (Debian: apt-get install krb5-kdc krb5-admin-server krb5-user).",
        )
    return found
