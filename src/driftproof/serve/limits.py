"""Limits on what a request may cost."""

from dataclasses import dataclass, fields

from driftproof.errors import ConfigurationError

__all__ = ["Limits"]


@dataclass(frozen=True)
class Limits:
    """What a server accepts; anything beyond is refused with a named error.

    All bodies together have at most `max_buffered_bytes`. Parsing and decoding them takes about three times that.

    Attributes:
        max_bytes: Bytes of a request's body.
        max_images: Images in a request.
        max_pixels: Pixels of an image, before resizing.
        seconds: Time for a request, from its first byte to its answer.
        header_seconds: Time for a connection to send the header of its first request.
        max_pending: Images that wait for the model, in all requests together.
        max_buffered_bytes: Bytes of all bodies that are being received or decoded.
        max_connections: Open connections.
    """

    max_bytes: int = 8 * 2**20
    max_images: int = 32
    max_pixels: int = 2**24
    seconds: float = 30.0
    header_seconds: float = 10.0
    max_pending: int = 256
    max_buffered_bytes: int = 256 * 2**20
    max_connections: int = 2000

    def __post_init__(self) -> None:
        for name in (field.name for field in fields(self)):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"Expected `{name}` to be above 0, but got {getattr(self, name)}.")
        if self.max_images > self.max_pending:
            raise ConfigurationError(
                f"Expected `max_pending` to be at least `max_images`, {self.max_images}, but got {self.max_pending}."
            )
