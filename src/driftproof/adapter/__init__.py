"""The adapter, its method, its state and its step."""

from driftproof.adapter.adapter import Adapter
from driftproof.adapter.method import AdapterOptions, Method

__all__ = ["Adapter", "AdapterOptions", "Method"]
