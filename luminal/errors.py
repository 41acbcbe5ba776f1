"""Every error that luminal raises on purpose.

LuminalError
├── ShapeError        shapes or ranks that do not fit (also a ValueError)
├── DTypeError        dtypes that do not fit (also a TypeError)
├── ArgumentError     a bad argument value (also a ValueError)
├── OutOfRangeError   an index outside its dimension (also an IndexError)
├── WeightsError      a model file that cannot be read
├── DeviceError       no such device, or it failed
├── UnsupportedError  something luminal does not do (also a NotImplementedError)
└── InternalError     a bug in luminal itself: names the stage and where the dump lies"""

import warnings
from functools import cache


class LuminalError(Exception):
    """Base of all errors of luminal; the text says what is wrong and what to try."""


class ShapeError(LuminalError, ValueError):
    """Shapes or ranks do not fit together."""


class DTypeError(LuminalError, TypeError):
    """A dtype is not accepted here."""


class ArgumentError(LuminalError, ValueError):
    """An argument has a value that is not accepted."""


class OutOfRangeError(LuminalError, IndexError, RuntimeError):
    """An index lies outside the dimension that it indexes. PyTorch raises the one or the other."""


class WeightsError(LuminalError, ValueError):
    """A model file is damaged, truncated or of an unknown kind."""


class DeviceError(LuminalError, RuntimeError):
    """A device is missing or failed."""


class UnsupportedError(LuminalError, NotImplementedError):
    """luminal does not do this."""


class InternalError(LuminalError, RuntimeError):
    """A bug in luminal: the text names the stage and the rule or kernel."""


@cache
def warn_unwritable(folder: str, variable: str, loss: str, reason: str | None) -> None:
    """Warn, once a folder, that it cannot be written; `loss` is what that costs."""
    text = f"luminal cannot write to {folder} ({reason}), so {loss}."
    warnings.warn(f"{text} Set {variable} to a folder that can be written.", stacklevel=3)
