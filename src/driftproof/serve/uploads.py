"""Read the images of a request, within limits."""

import base64
import binascii
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import anyio
from starlette.requests import ClientDisconnect, Request

from driftproof.serve.errors import RequestError
from driftproof.serve.forms import parse_form
from driftproof.serve.limits import Limits

__all__ = ["ByteBudget", "Upload", "read_body", "read_uploads"]

_DRAIN_SECONDS = 2.0
_MAX_NAME = 200
_DATA_URL = re.compile(r"data:[\w/+.-]*;base64,")


@dataclass(frozen=True)
class Upload:
    """An image as it was sent.

    Attributes:
        name: Its name, for error messages and answers.
        content: The encoded image.
    """

    name: str
    content: bytes


class ByteBudget:
    """Counts the bytes of all bodies in memory.

    Args:
        limit: How many there may be.

    Attributes:
        used: How many there are.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def reserve(self, count: int) -> None:
        """Take so many bytes; raise `RequestError` if they are not there."""
        if self.used + count > self.limit:
            raise RequestError(
                "overloaded", f"Expected at most {self.limit:,} bytes of uploads at a time. Send the request again."
            )
        self.used += count


@asynccontextmanager
async def read_uploads(request: Request, limits: Limits, budget: ByteBudget) -> AsyncIterator[list[Upload]]:
    """Yield the images of a request; their bytes count towards the budget until the context ends.

    The body is an image, a form with one file for each image, or JSON: `{"images": ["<base64>", …]}`.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("application/json", "multipart/form-data", "application/octet-stream") and kind[:6] != "image/":
        raise RequestError(
            "unsupported_type",
            f"Expected an image, multipart/form-data or application/json, but got {kind[:100] or 'no content type'!r}.",
        )
    async with read_body(request, limits.max_bytes, budget) as body:
        if kind == "application/json":
            uploads = _parse_json(body)
        elif kind == "multipart/form-data":
            files = parse_form(request.headers["content-type"], body, limits.max_images)
            uploads = [Upload(_clean(file.name), bytes(file.content)) for file in files]
        else:
            uploads = [Upload("the upload", body)]
        if not uploads:
            raise RequestError("malformed", "Expected at least one image, but got none. Send files, or base64 in JSON.")
        if len(uploads) > limits.max_images:
            raise RequestError(
                "too_large", f"Expected at most {limits.max_images} images in a request, but got {len(uploads)}."
            )
        yield uploads


@asynccontextmanager
async def read_body(request: Request, max_bytes: int, budget: ByteBudget) -> AsyncIterator[bytes]:
    """Yield the body of a request; its bytes count towards the budget until the context ends."""
    _check_length(request.headers.get("content-length"))
    body, reserved, stream = bytearray(), 0, request.stream()
    try:
        try:
            async for chunk in stream:
                if len(body) + len(chunk) > max_bytes:
                    await _drain(stream, 4 * max_bytes)
                    raise RequestError(
                        "too_large", f"Expected a body of at most {max_bytes:,} bytes, but got more. Send fewer images."
                    )
                budget.reserve(len(chunk))
                reserved += len(chunk)
                body += chunk
        except ClientDisconnect as error:
            raise RequestError("malformed", "Expected the whole body, but the connection was closed.") from error
        yield bytes(body)
    finally:
        budget.used -= reserved


def _check_length(text: str | None) -> None:
    if text is not None and not text.isdecimal():
        raise RequestError("malformed", "Expected the header Content-Length to be a number, but got something else.")


async def _drain(stream: AsyncGenerator[bytes, None], most: int) -> None:
    """Read on for a moment: a client that is still sending would not see the answer."""
    with anyio.move_on_after(_DRAIN_SECONDS):
        async for chunk in stream:
            most -= len(chunk)
            if most < 0:
                return


def _parse_json(body: bytes) -> list[Upload]:
    try:
        images = json.loads(body)["images"]
        if not isinstance(images, list) or not all(isinstance(image, str) for image in images):
            raise TypeError("`images` is no list of text")
        decoded = [base64.b64decode(_DATA_URL.sub("", image, count=1), validate=True) for image in images]
    except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as error:
        raise RequestError(
            "malformed",
            f'Expected JSON such as {{"images": ["<base64>"]}}, but it cannot be read ({type(error).__name__}).',
        ) from error
    return [Upload(f"image {index}", content) for index, content in enumerate(decoded)]


def _clean(name: str | None) -> str:
    printable = "".join(letter if letter.isprintable() else "?" for letter in name or "the upload")
    return printable[:_MAX_NAME].encode(errors="replace").decode()
