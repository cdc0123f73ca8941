"""The one loop that every method runs in."""

from driftproof.adapter.adapter import Adapter
from driftproof.adapter.settings import Settings

__all__ = ["Adapter", "Settings"]
