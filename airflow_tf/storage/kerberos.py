"""Kerberos: what the clients need of the process, and its refusals in words that say what to do."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Mapping
from pathlib import Path

from airflow_tf.core.errors import StorageError, StoragePermissionError, StorageUnavailableError
from airflow_tf.storage.options import StorageOptions

PROTECTIONS = "authentication,integrity,privacy"

_LONGEST_REASON = 300
_KLIST_SECONDS = 10.0
_TOKEN_MAGIC = b"HDTS"
_HA_SERVICE = b"ha-hdfs:"
_RENEW = (
    "Get a new one by kinit, or give the connection a kerberos_principal and kerberos_keytab: they renew themselves."
)
_KEYTAB = (
    "Check that kerberos_keytab can be read by this user and holds kerberos_principal's present key:"
    " kinit -k -t KEYTAB PRINCIPAL."
)
# Text of GSSAPI to what is wrong and what to do; the first that is found counts.
_REASONS: tuple[tuple[str, str, str], ...] = (
    ("expired", "the Kerberos ticket has expired", _RENEW),
    ("does not match desired name", "the ticket cache holds a ticket of another principal", _RENEW),
    ("Decrypt integrity check failed", "the KDC refused the key of the keytab, which is not the present one", _KEYTAB),
    ("Preauthentication failed", "the KDC refused the key of the keytab, which is not the present one", _KEYTAB),
    ("No credentials cache found", "the keytab gives no ticket for this principal", _KEYTAB),
    ("find client principal", "neither keytab nor ticket cache has this principal", _KEYTAB),
    ("Client not found", "the KDC does not know this principal", _KEYTAB),
    ("keytab", "the keytab gives no ticket for this principal", _KEYTAB),
    (
        "Server not found",
        "the KDC does not know the server under this host name",
        "Write the host as in the server's principal (like nn/HOST@REALM).",
    ),
    ("Clock skew", "the clocks of this host and of the KDC differ too much", "Set this host's clock by NTP."),
    ("No Kerberos credentials", "there is no Kerberos ticket", _RENEW),
    ("SPNEGO cannot find mechanisms", "there is no Kerberos ticket", _RENEW),
    ("load libgssapi", "the library libgssapi_krb5.so.2 is missing", "Install libgssapi-krb5-2 (Debian) or krb5-libs."),
)


def is_kerberos_failure(text: str) -> bool:
    """Tell whether a client's error comes from GSSAPI."""
    return "GSSAPI" in text or "libgssapi" in text


def kerberos_error(text: str, options: StorageOptions, action: str, uri: str) -> StorageError:
    """Build our error for one of GSSAPI; a silent KDC, or a ticket of a keytab that just ended, is worth a retry."""
    what, detail = f"Cannot {action} {uri}", text.rpartition(": ")[2].strip('")')
    if "Cannot contact any KDC" in text:
        todo = "Check the KDC's address in krb5.conf and that it is reachable from this host, then retry."
        return StorageUnavailableError(what, f"Kerberos: {detail}", todo)
    if "expired" in text and options.kerberos_keytab:  # in the moment of its use
        return StorageUnavailableError(what, f"the Kerberos ticket has expired ({_source(options)})", "Retry.")
    for known, why, todo in _REASONS:
        if known in text:
            return StoragePermissionError(what, f"{why} ({_source(options)}): {detail}", todo)
    return StoragePermissionError(what, f"Kerberos ({_source(options)}): {text[:_LONGEST_REASON]}", _RENEW)


def _source(options: StorageOptions) -> str:
    keytab, principal = options.kerberos_keytab, options.kerberos_principal
    parts = [f"principal {principal}"] if principal else []
    if keytab:
        readable = os.access(keytab, os.R_OK)
        parts.append(f"keytab {keytab}" if readable else f"keytab {keytab}, which this user cannot read")
    else:
        default = os.environ.get("KRB5CCNAME", "the default one")
        parts.append(f"ticket cache {options.kerberos_cache or default}")
    if options.token_file:
        parts.append(f"no token that fits and is valid in {options.token_file}")
    return ", ".join(parts)


def describe_credentials(options: StorageOptions) -> list[str]:
    """Say for people what authenticates us, and until when if a program of the host can tell."""
    if options.token_file:
        return [f"tokens of {options.token_file}"]
    if options.kerberos_keytab:
        return [f"keytab of {options.kerberos_principal}"]
    if not (options.kerberos or options.kerberos_cache or "KRB5CCNAME" in os.environ):
        return []
    cache = ["-c", options.kerberos_cache] if options.kerberos_cache else []
    try:
        done = subprocess.run(["klist", *cache], capture_output=True, text=True, timeout=_KLIST_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ["by ticket"]
    until = [line.strip() for line in done.stdout.splitlines() if "krbtgt/" in line]
    return [f"by ticket ({'; '.join(until)})"] if until else ["without a ticket"]


def process_variables(options: StorageOptions) -> dict[str, str]:
    """Return the environment variables by which alone the clients can be told some of the options.

    :raises StoragePermissionError: if the token file cannot be used; the client would go on without it.
    """
    is_native = options.backend == "hdfs"
    cache = options.kerberos_cache
    if options.kerberos_keytab and not is_native:
        cache = cache or "MEMORY:airflow_tf"  # the default one may hold a ticket of another principal
    wanted = {
        "HADOOP_USER_NAME": options.user if is_native else None,
        "KRB5_CLIENT_KTNAME": options.kerberos_keytab if not is_native else None,
        # With a principal the native client takes the cache as an argument, without one it refuses it.
        "KRB5CCNAME": cache if not (is_native and options.kerberos_principal) else None,
        "HADOOP_TOKEN_FILE_LOCATION": options.token_file,
    }
    if options.token_file:
        _read_token(options.token_file)
    return {name: value for name, value in wanted.items() if value}


def _read_token(file: str) -> bytes:
    todo = "Fetch a token by 'hdfs fetchdt FILE' with a ticket."
    try:
        data = Path(file).read_bytes()
    except OSError as error:
        raise StoragePermissionError(f"Cannot use the token file {file}", str(error.strerror), todo) from error
    if not data.startswith(_TOKEN_MAGIC):
        raise StoragePermissionError(f"Cannot use the token file {file}", "it is no file of Hadoop tokens", todo)
    return data


def properties(options: StorageOptions, environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the Hadoop properties that Kerberos needs, where no configuration folder may have them.

    Without a protection the client writes nothing and says only that the file was not completed in time; which level
    is used is then the DataNode's choice.
    """
    secure = options.kerberos_principal or options.kerberos_cache or options.token_file
    if not secure or options.config_dir or environment.get("HADOOP_CONF_DIR"):
        return {}
    return {"hadoop.security.authentication": "kerberos", "dfs.data.transfer.protection": PROTECTIONS}


def name_service_of_token(file: str) -> str:
    """Return the name service that the tokens of a file are for; empty if it names none, or cannot be read.

    Hadoop writes ``ha-hdfs:NAME`` where a cluster has several NameNodes, and the client compares texts: under another
    name for the same NameNodes it would find no token.
    """
    try:
        data = _read_token(file)
    except StoragePermissionError:
        return ""  # the mover says so
    # In both formats of such files the byte before a short text is its length.
    starts = [match.start() for match in re.finditer(re.escape(_HA_SERVICE), data)]
    found = {data[start : start + data[start - 1]].removeprefix(_HA_SERVICE) for start in starts}
    return found.pop().decode(errors="replace") if len(found) == 1 else ""


def address_of_token(url: str, options: StorageOptions) -> str:
    """Return ``url`` with the host's address instead of its name, where the token is for the address.

    Hadoop's tokens name the address by default, and the client compares texts.
    """
    scheme, _, authority = url.partition("://")
    host, _, port = authority.partition(":")
    if not options.token_file or not port:
        return url
    try:
        address = socket.gethostbyname(host)
    except OSError:
        return url  # the client says so
    service = f"{address}:{port}"
    return f"{scheme}://{service}" if service.encode() in _read_token(options.token_file) else url
