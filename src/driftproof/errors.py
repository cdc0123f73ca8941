"""Every error driftproof raises on purpose.

    DriftproofError
    ├── ConfigurationError   a hyper-parameter is out of range            (also a ValueError)
    ├── InputError           a batch, a file or a data set cannot be used (also a ValueError)
    ├── ModelError           the model cannot be adapted as asked         (also a ValueError)
    ├── ForwardError         the model itself failed on a batch           (also a RuntimeError)
    ├── EngineError          the step could not be recorded or compiled   (also a RuntimeError)
    ├── DistributedError           the ranks differ, or have lost each other    (also a RuntimeError)
    ├── StateError           a saved state is damaged or belongs elsewhere (also a ValueError)
    ├── DownloadError        a file could not be had, or is not the file  (also an OSError)
    ├── DivergenceError      training has left the finite numbers         (also a RuntimeError)
    ├── ExecutionError       some cells of a benchmark could not be run   (also a RuntimeError)
    ├── MissingPackageError  an optional package is not installed         (also an ImportError)
    └── CallOrderError       something was asked for too early            (also a RuntimeError)
        └── NotPreparedError `prepare(source)` has to come first

Whichever of them an adapter raises, its state is what it was before the call.
"""

__all__ = [
    "CallOrderError",
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
    """The common ancestor: catch this to catch every error that driftproof raises on purpose."""


class ConfigurationError(DriftproofError, ValueError):
    """A hyper-parameter is out of range."""


class InputError(DriftproofError, ValueError):
    """A batch, a file or a data set cannot be used; the message says why."""


class ModelError(DriftproofError, ValueError):
    """The model cannot be adapted as asked."""


class ForwardError(DriftproofError, RuntimeError):
    """The model itself failed on a batch; the original error is the cause."""


class EngineError(DriftproofError, RuntimeError):
    """A fast engine could not record or compile the step; the original error is the cause."""


class DistributedError(DriftproofError, RuntimeError):
    """The ranks of a data-parallel adapter are not alike, or have lost each other."""


class StateError(DriftproofError, ValueError):
    """A saved state is damaged, or was saved by another method or for another model."""


class DownloadError(DriftproofError, OSError):
    """A file could not be downloaded or unpacked, or what came is not the file."""


class DivergenceError(DriftproofError, RuntimeError):
    """Training has left the finite numbers."""


class ExecutionError(DriftproofError, RuntimeError):
    """Some cells of a benchmark could not be run; the message names them, and the others are done."""


class MissingPackageError(DriftproofError, ImportError):
    """An optional package is not installed; the message says how to install it."""


class CallOrderError(DriftproofError, RuntimeError):
    """Something was asked for too early."""


class NotPreparedError(CallOrderError):
    """The method needs source data: call `adapter.prepare(source)` first."""
