"""Errors of requests: an HTTP status, a code for programs and a message for people."""

from typing import Any

from driftproof.errors import DriftproofError

__all__ = ["STATUS", "RequestError", "describe_error"]

STATUS = {
    "malformed": 400,
    "unauthorized": 401,
    "disabled": 403,
    "other_origin": 403,
    "not_found": 404,
    "method_not_allowed": 405,
    "upload_timeout": 408,
    "read_only": 409,
    "too_large": 413,
    "unsupported_type": 415,
    "bad_image": 422,
    "bad_state": 422,
    "model_failed": 422,
    "wrong_host": 421,
    "internal": 500,
    "not_ready": 503,
    "overloaded": 503,
    "stuck": 503,
    "timeout": 504,
}
"""The codes of all errors, with their HTTP status."""

_UNREAD = ("other_origin", "overloaded", "too_large", "unsupported_type", "upload_timeout", "wrong_host")


class RequestError(DriftproofError):
    """A request was refused, or has no answer.

    Args:
        code: One of `STATUS`.
        message: What was expected, what was got, what to do.

    Attributes:
        code: The code.
        status: The HTTP status.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.status = STATUS[code]

    @property
    def headers(self) -> dict[str, str]:
        """Headers that go with the answer."""
        headers = {"connection": "close"} if self.code in _UNREAD else {}  # its body may not have been read
        if self.code == "unauthorized":
            headers["www-authenticate"] = "Bearer"
        return headers | ({"retry-after": "1"} if self.status == 503 else {})


def describe_error(error: RequestError) -> dict[str, Any]:
    """Return an error as data for JSON."""
    return {"error": {"code": error.code, "message": str(error)}}
