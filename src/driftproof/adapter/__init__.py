"""The one loop that every method runs in."""

from driftproof.adapter.adapter import Adapter, Settings

__all__ = ["Adapter", "Settings"]
