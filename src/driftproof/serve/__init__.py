"""Serve an adapter over HTTP: predictions in common batches, state on disk, metrics and a page.

The command is `driftproof serve`; `docs/serving.md` says how to use it.
"""

from driftproof.serve.limits import Limits

__all__ = ["Limits"]
