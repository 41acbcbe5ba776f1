"""Frames that run in eager because converting them failed: eager's result, or eager's own error.

In: the error of a conversion for our backend. Out: Dynamo's order to run the frame as it is.
Dynamo's stand-ins for tensors refuse some of what eager does (writes into expanded tensors, odd
uses of `set_`), and then PyTorch ends the program.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary

from torch._dynamo.exc import (
    BackendCompilerFailed,
    InternalTorchDynamoError,
    TorchDynamoException,
    TorchRuntimeError,
)
from torch._dynamo.types import ConvertFrameReturn

from luminal.errors import LuminalError
from luminal.frontend.torch.reports import Report, record, warn_once

__all__ = ["in_eager"]

log = logging.getLogger("luminal.torch")
_FAILURES = (BackendCompilerFailed, InternalTorchDynamoError, TorchRuntimeError)
_MOST_TRIES = 3  # of the same code: an error of the user's own may be gone the next time
_TRIES: WeakKeyDictionary[CodeType, int] = WeakKeyDictionary()


def in_eager(converter: Any, code: CodeType, error: Exception) -> ConvertFrameReturn:
    """Runs the frame in eager; raises `error` where the user asked for one graph or no fallback."""
    box = getattr(converter, "_box", None)
    whole = converter._one_graph or getattr(box, "error_on_graph_break", False)
    fallback = _options(converter._torchdynamo_orig_backend).get("fallback", "warn")
    ours = isinstance(getattr(error, "inner_exception", error), LuminalError)
    meant = isinstance(error, TorchDynamoException) and not isinstance(error, _FAILURES)
    if whole or ours or meant or fallback == "error":
        raise error
    reason = (str(error).strip() or type(error).__name__).splitlines()[0]
    report = record(Report("whole", reasons={code.co_name: reason}))
    report.fallback[code.co_name] += 1
    if fallback == "warn":
        warn_once(report)
    log.info("%s runs in eager: %s", code.co_qualname, reason)
    _TRIES[code] = _TRIES.get(code, 0) + 1
    return ConvertFrameReturn(apply_to_code=_TRIES[code] >= _MOST_TRIES, skip_reason=reason)


def _options(function: Any) -> Mapping[str, object]:
    """The options of torch.compile that a backend was given."""
    while hasattr(function, "_torchdynamo_orig_backend"):
        function = function._torchdynamo_orig_backend
    return getattr(function, "kwargs", {}).get("options") or {}
