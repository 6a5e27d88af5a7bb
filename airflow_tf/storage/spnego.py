"""SPNEGO for ``requests``: HTTP authentication with the Kerberos ticket of the process, by the system's GSSAPI library.

The library is the one that hdfs-native loads too (``libgssapi_krb5.so.2``); packages that bind it (requests-kerberos,
gssapi) are not built for Linux and need a compiler and headers at each installation.
"""

from __future__ import annotations

import base64
import ctypes
from collections.abc import Collection
from functools import cache
from typing import Any
from urllib.parse import urlsplit

import requests
from requests.auth import AuthBase

_LIBRARY = "libgssapi_krb5.so.2"
_SPNEGO_OID = b"\x2b\x06\x01\x05\x05\x02"  # 1.3.6.1.5.5.2
_ERROR_MASK = 0xFFFF0000
_MUTUAL = 2
_INITIATE = 1
_CODE_KINDS = (1, 2)  # of GSSAPI, of the mechanism


class SpnegoError(OSError):
    """GSSAPI gave no token; the text is its own and says why."""


class _Buffer(ctypes.Structure):
    _fields_ = (("length", ctypes.c_size_t), ("value", ctypes.c_void_p))


class _Oid(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint32), ("elements", ctypes.c_void_p))


class SpnegoAuth(AuthBase):
    """Answers a 401 of certain hosts by a token, once; the cookie of the answer authenticates what follows.

    Others (DataNodes) never get a token: the redirect to them carries one of HDFS.

    :param hosts: hosts with port, as in URLs.
    :param principal: whose ticket is used, None: that of the default cache.
    """

    def __init__(self, hosts: Collection[str], principal: str | None = None) -> None:
        self._hosts, self._principal = hosts, principal

    def __call__(self, request: requests.PreparedRequest) -> requests.PreparedRequest:
        """Look at the answer to this request."""
        request.register_hook("response", self._answer)
        return request

    def _answer(self, response: requests.Response, **options: Any) -> requests.Response:
        asked, host = response.request, urlsplit(response.request.url or "")
        offered = "negotiate" in response.headers.get("WWW-Authenticate", "").lower()
        if response.status_code != requests.codes.unauthorized or not offered or host.netloc not in self._hosts:
            return response
        if "Authorization" in asked.headers:
            return response
        _ = response.content  # to use the connection again
        response.close()
        again = asked.copy()
        again.headers.pop("Cookie", None)  # one that has expired
        again.headers["Authorization"] = f"Negotiate {token(f'HTTP@{host.hostname}', self._principal)}"
        answer: requests.Response = response.connection.send(again, **options)
        answer.history.append(response)
        answer.request = again
        return answer


def token(service: str, principal: str | None = None) -> str:
    """Return a token, in base64, for a service like ``HTTP@host``.

    A principal's ticket is one of the cache, or taken by the keytab of ``KRB5_CLIENT_KTNAME``, anew before it ends.

    :raises SpnegoError: without the library, a ticket, or an answer of the KDC.
    """
    library = _library()
    minor, context = ctypes.c_uint32(), ctypes.c_void_p()
    name, credential = ctypes.c_void_p(), ctypes.c_void_p()
    oid = ctypes.create_string_buffer(_SPNEGO_OID)
    mechanism = _Oid(len(_SPNEGO_OID), ctypes.cast(oid, ctypes.c_void_p))
    out = _Buffer()
    try:
        if principal:
            _acquire(library, principal, credential)
        _import_name(library, service, "GSS_C_NT_HOSTBASED_SERVICE", name)
        major = library.gss_init_sec_context(
            ctypes.byref(minor), credential, ctypes.byref(context), name, ctypes.byref(mechanism),
            _MUTUAL, 0, None, None, None, ctypes.byref(out), None, None,
        )  # fmt: skip
        _check(library, major, minor)
        return base64.b64encode(ctypes.string_at(out.value or 0, out.length)).decode()
    finally:
        library.gss_release_buffer(ctypes.byref(minor), ctypes.byref(out))
        library.gss_delete_sec_context(ctypes.byref(minor), ctypes.byref(context), None)
        library.gss_release_name(ctypes.byref(minor), ctypes.byref(name))
        library.gss_release_cred(ctypes.byref(minor), ctypes.byref(credential))


def _import_name(library: Any, text: str, kind: str, name: ctypes.c_void_p) -> None:  # noqa: ANN401 -- see _library
    minor, data = ctypes.c_uint32(), ctypes.create_string_buffer(text.encode())
    wanted = _Buffer(len(text.encode()), ctypes.cast(data, ctypes.c_void_p))
    type_ = ctypes.c_void_p.in_dll(library, kind)
    _check(
        library, library.gss_import_name(ctypes.byref(minor), ctypes.byref(wanted), type_, ctypes.byref(name)), minor
    )


def _acquire(library: Any, principal: str, credential: ctypes.c_void_p) -> None:  # noqa: ANN401 -- see _library
    minor, name = ctypes.c_uint32(), ctypes.c_void_p()
    try:
        _import_name(library, principal, "GSS_C_NT_USER_NAME", name)
        major = library.gss_acquire_cred(
            ctypes.byref(minor), name, 0, None, _INITIATE, ctypes.byref(credential), None, None
        )
        _check(library, major, minor)
    finally:
        library.gss_release_name(ctypes.byref(minor), ctypes.byref(name))


@cache
def _library() -> Any:  # noqa: ANN401 -- functions of a C library
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        raise SpnegoError(f"Failed to load libgssapi_krb5: {error}") from error
    # Without declared results a handle of 64 bits is cut to an int.
    for name in ("gss_import_name", "gss_acquire_cred", "gss_init_sec_context", "gss_display_status"):
        getattr(library, name).restype = ctypes.c_uint32
    return library


def _check(library: Any, major: int, minor: ctypes.c_uint32) -> None:  # noqa: ANN401 -- as above
    if major & _ERROR_MASK:
        codes = zip(_CODE_KINDS, (major, minor.value), strict=True)
        raise SpnegoError(", ".join(_describe(library, kind, code) for kind, code in codes))


def _describe(library: Any, kind: int, code: int) -> str:  # noqa: ANN401 -- as above
    minor, more, text = ctypes.c_uint32(), ctypes.c_uint32(), _Buffer()
    library.gss_display_status(
        ctypes.byref(minor), ctypes.c_uint32(code), kind, None, ctypes.byref(more), ctypes.byref(text)
    )
    try:
        return ctypes.string_at(text.value or 0, text.length).decode(errors="replace") if text.value else ""
    finally:
        library.gss_release_buffer(ctypes.byref(minor), ctypes.byref(text))
