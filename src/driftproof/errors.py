"""The exceptions of driftproof.

    DriftproofError
    ├── ConfigurationError   an argument or option is invalid               (also a ValueError)
    ├── InputError           a batch, file or data set cannot be used       (also a ValueError)
    ├── ComponentError       a component returned something unusable        (also a ValueError)
    ├── ModelError           the model cannot be adapted as requested       (also a ValueError)
    ├── ForwardError         the model's forward pass failed                (also a RuntimeError)
    ├── EngineError          capturing or compiling a step failed           (also a RuntimeError)
    ├── DistributedError     ranks disagree, or communication failed        (also a RuntimeError)
    ├── StateError           a saved state is damaged or does not match     (also a ValueError)
    ├── DownloadError        a download failed or has the wrong content     (also an OSError)
    ├── DivergenceError      training produced NaN or Inf                   (also a RuntimeError)
    ├── ExecutionError       some benchmark runs failed                     (also a RuntimeError)
    ├── MissingPackageError  an optional package is not installed           (also an ImportError)
    └── CallOrderError       a method was called too early                  (also a RuntimeError)
        └── NotPreparedError `prepare(source)` must be called first

An adapter that raises one of these has the state it had before the call.
"""

from collections.abc import Mapping
from typing import Any

__all__ = [
    "CallOrderError",
    "ComponentError",
    "ConfigurationError",
    "DistributedError",
    "DivergenceError",
    "DownloadError",
    "DriftproofError",
    "EngineError",
    "ExecutionError",
    "ForwardError",
    "InputError",
    "MissingPackageError",
    "ModelError",
    "NotPreparedError",
    "StateError",
]


class DriftproofError(Exception):
    """Base class of all exceptions that driftproof raises."""


class ConfigurationError(DriftproofError, ValueError):
    """An argument or option is invalid."""


class InputError(DriftproofError, ValueError):
    """A batch, a file or a data set cannot be used; the message says why."""


class ComponentError(DriftproofError, ValueError):
    """A component returned or did something that an adapter cannot use; the message names the component."""


class ModelError(DriftproofError, ValueError):
    """The model cannot be adapted as requested."""


class ForwardError(DriftproofError, RuntimeError):
    """The forward pass of the model failed; the original error is the cause."""


class EngineError(DriftproofError, RuntimeError):
    """An engine failed to capture or compile the step; the original error is the cause."""


class DistributedError(DriftproofError, RuntimeError):
    """The ranks of a data-parallel adapter disagree, or communication between them failed."""


class StateError(DriftproofError, ValueError):
    """A saved state is damaged, or belongs to another method or model."""


class DownloadError(DriftproofError, OSError):
    """A file could not be downloaded or unpacked, or has the wrong content."""


class DivergenceError(DriftproofError, RuntimeError):
    """Training produced NaN or Inf."""


class ExecutionError(DriftproofError, RuntimeError):
    """Some runs of a benchmark failed; the message names them. The other runs are complete.

    Args:
        message: The message.
        failures: The errors by run.
    """

    def __init__(self, message: str, failures: Mapping[Any, Exception] | None = None) -> None:
        super().__init__(message)
        self.failures = dict(failures or {})


class MissingPackageError(DriftproofError, ImportError):
    """An optional package is not installed; the message says how to install it."""


class CallOrderError(DriftproofError, RuntimeError):
    """A method or attribute was used too early."""


class NotPreparedError(CallOrderError):
    """The method needs source data; call `adapter.prepare(source)` first."""
