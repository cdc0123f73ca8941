"""Whose prediction a selection reads."""

from typing import Literal

from driftproof.errors import ConfigurationError

__all__ = ["WhichNetwork", "check_network"]


WhichNetwork = Literal["adapting", "source"]


def check_network(network: str) -> None:
    """Refuse anything but the names of the two networks."""
    if network not in ("adapting", "source"):
        raise ConfigurationError(f'Expected `network` to be "adapting" or "source", but got {network!r}.')
