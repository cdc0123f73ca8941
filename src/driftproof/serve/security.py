"""Tokens, hosts and origins: who may ask for what."""

import hmac
from collections.abc import Iterable
from ipaddress import ip_address
from pathlib import Path
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from driftproof.errors import ConfigurationError
from driftproof.files import open_regular
from driftproof.serve.errors import RequestError

__all__ = ["HEADERS", "allowed_hosts", "check_host", "check_origin", "check_token", "is_loopback", "read_token"]

HEADERS = {
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Headers of every answer."""

_MIN_TOKEN = 16
_LOCAL = ("127.0.0.1", "localhost", "::1")


def read_token(path: Path) -> str:
    """Read a token from a file; its first line, of at least 16 characters."""
    with open_regular(path) as file:
        line = file.readline(4096).decode(errors="replace").strip()
    if len(line) < _MIN_TOKEN or not line.isascii() or not line.isprintable():
        raise ConfigurationError(
            f"Expected {path} to hold a token of at least {_MIN_TOKEN} printable ASCII characters, but it does not. "
            "Make one with `python -c 'import secrets; print(secrets.token_urlsafe(32))'`."
        )
    return line


def check_token(headers: Headers, token: str | None) -> None:
    """Raise `RequestError` unless the request carries the token; without a token nothing is allowed."""
    if token is None:
        raise RequestError("disabled", "Expected a server with a token, but it has none. Start it with `--token-file`.")
    kind, _, given = headers.get("authorization", "").partition(" ")
    # Compared in constant time, and as bytes: text outside ASCII would raise an error.
    if kind.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), token.encode()):
        raise RequestError("unauthorized", "Expected the header `Authorization: Bearer TOKEN` with the server's token.")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def allowed_hosts(host: str, others: Iterable[str]) -> frozenset[str] | None:
    """Return the names that requests may be sent to; None allows every name.

    On loopback this keeps web pages out that have their own name point here.
    """
    given = frozenset(map(str.lower, others))
    if is_loopback(host):
        return given | {*_LOCAL, host}
    return given or None


def check_host(headers: Headers, allowed: frozenset[str] | None) -> None:
    """Raise `RequestError` if a request is sent to a name that is not allowed."""
    if allowed is None:
        return
    name = urlsplit(f"//{headers.get('host', '')}").hostname or ""
    if name not in allowed:
        raise RequestError(
            "wrong_host", "Expected a request to a name of this server, but got another. Pass `--allow-host`."
        )


def check_origin(headers: Headers) -> None:
    """Raise `RequestError` if a web page of another origin sends the request."""
    origin = headers.get("origin")
    if origin is not None and urlsplit(origin).netloc.lower() != headers.get("host", "").lower():
        raise RequestError("other_origin", "Expected a request of this server's own page, but another page sent it.")
