"""Runs samples of PyTorch's OpInfo database under torch.compile; started by opinfo.py.

In: on stdin one JSON line an operator: name, variant, dtype, first sample, number of samples.
Out: on stdout one JSON line a sample, then one with `done`. A crash is the affair of the caller.
"""

import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402
from torch._prims_common import check_significant_strides  # noqa: E402
from torch.testing._internal import common_methods_invocations  # noqa: E402
from torch.testing._internal.common_device_type import toleranceOverride  # noqa: E402
from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.utils._pytree import tree_flatten, tree_map  # noqa: E402

import luminal.torch  # noqa: E402

OPTIONS = {"search": "off", "fallback": "silent"}
CONTENT_FREE = ("empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided",
                "empty_permuted")  # fmt: skip
HALVES = (torch.float16, torch.bfloat16)


def operator(name: str, variant: str) -> object:
    """The OpInfo of that name and variant."""
    return next(o for o in op_db if (o.name, o.variant_test_name) == (name, variant))


def samples(info: object, dtype: torch.dtype) -> list[object]:
    """All forward samples, the same in every process."""
    torch.manual_seed(0)
    return list(info.sample_inputs("cpu", dtype, requires_grad=False))


def spread(count: int, limit: int) -> list[int]:
    """At most `limit` positions of `count`, evenly spread (all of them if `limit` is 0)."""
    if not limit or count <= limit:
        return list(range(count))
    return [round(i * (count - 1) / max(limit - 1, 1)) for i in range(limit)]


def copied(value: object) -> object:
    """The nested value with tensors copied, strides kept."""
    return tree_map(lambda v: v.detach().clone() if isinstance(v, torch.Tensor) else v, value)


def widened(value: object) -> object:
    """The nested value with floats in double precision."""

    def wide(v: object) -> object:
        is_float = isinstance(v, torch.Tensor) and v.is_floating_point()
        return v.double() if is_float else torch.float64 if v in HALVES else v

    return tree_map(wide, value)


def call(function: Callable[..., object], sample: object) -> tuple[object, list[object]]:
    """The result and the arguments afterwards."""
    arguments = copied((sample.input, list(sample.args), dict(sample.kwargs)))
    torch.manual_seed(0)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = function(arguments[0], *arguments[1], **arguments[2])
    return result, tree_flatten(arguments)[0]


def tolerances(info: object, dtype: torch.dtype) -> dict[str, float]:
    """What the database itself allows for this operator, beyond the usual."""
    found = [d for o in info.decorators for d in getattr(o, "decorators", [o])]
    allowed = [d.d[dtype] for d in found if isinstance(d, toleranceOverride) and dtype in d.d]
    if not allowed:
        return {}
    return {"atol": max(t.atol for t in allowed), "rtol": max(t.rtol for t in allowed)}


def differences(
    got: object, want: object, allowed: dict[str, float] | None, exact: Callable[[], object]
) -> str:
    """What differs, or ''. `exact` computes the result in double precision; values are not
    compared if `allowed` is None."""
    a, b = tree_flatten(got), tree_flatten(want)
    if len(a[0]) != len(b[0]):
        return f"{len(a[0])} results instead of {len(b[0])}"
    for position, (x, y) in enumerate(zip(a[0], b[0], strict=True)):
        problem = difference(x, y, allowed)
        if problem and not closer(x, y, exact, position):
            return problem
    return ""


def difference(x: object, y: object, allowed: dict[str, float] | None) -> str:
    """What differs between two leaves, or ''."""
    if not isinstance(y, torch.Tensor):
        same = type(x) is type(y) and (x == y or x != x)
        return "" if same else f"{x!r} instead of {y!r}"
    if (x.dtype, x.shape, x.layout) != (y.dtype, y.shape, y.layout):
        return f"{x.dtype} {tuple(x.shape)} instead of {y.dtype} {tuple(y.shape)}"
    if y.layout == torch.strided and not check_significant_strides(x, y, only_cuda=False)[0]:
        return f"strides {x.stride()} instead of {y.stride()}"
    if allowed is None:
        return ""
    try:
        torch.testing.assert_close(x, y, equal_nan=True, **allowed)
    except AssertionError as error:
        return " ".join(str(error).split())[:200]
    return ""


def closer(x: object, y: object, exact: Callable[[], object], position: int) -> bool:
    """True if x is about as near to the result in double precision as eager's y is."""
    if not isinstance(x, torch.Tensor) or x.shape != y.shape:
        return False
    if not x.is_floating_point() and not x.is_complex():
        return False
    if x.dtype != y.dtype or not check_significant_strides(x, y, only_cuda=False)[0]:
        return False
    try:
        truth = tree_flatten(exact())[0][position]
        x, y, truth = (torch.view_as_real(v.resolve_conj()) if v.is_complex() else v
                       for v in (x, y, truth))  # fmt: skip
        truth = truth.double()
    except (RuntimeError, NotImplementedError, TypeError):
        return False
    # eager's own steps in half precision may overflow where ours, in single precision, do not
    model = truth.to(x.dtype) if x.dtype in HALVES else y
    if not any(torch.equal(x.isfinite(), v.isfinite()) for v in (y, model)):
        return False
    errors = [(v.double() - truth).abs().nan_to_num(0, 0, 0).max().item() for v in (x, y)]
    scale = truth.abs().nan_to_num(0, 0, 0).max().item() * torch.finfo(x.dtype).eps
    return errors[0] <= 4 * errors[1] + 4 * scale


def judge(info: object, sample: object) -> dict[str, object]:
    """The outcome of one sample, with the operators that ran in eager."""
    try:
        want, after = call(info.op, sample)
    except Exception as error:
        return {"outcome": "refused", "detail": f"eager: {error}"[:200]}
    luminal.torch.clear()
    torch._dynamo.reset()
    try:
        compiled = torch.compile(
            info.op, backend="luminal", fullgraph=True, dynamic=False, options=OPTIONS
        )
        got, changed = call(compiled, sample)
    except Exception as error:
        return failed(info, sample, error)
    dtype = next((v.dtype for v in after if isinstance(v, torch.Tensor)), torch.float32)
    allowed = None if info.name in CONTENT_FREE else tolerances(info, dtype)

    def exact() -> object:
        given, args, kwargs = widened((sample.input, sample.args, sample.kwargs))
        wide = type(sample)(given, args=args, kwargs=kwargs)
        return call(info.op, wide)[0]

    problem = differences(got, want, allowed, exact) or differences(changed, after, {}, exact)
    reports = luminal.torch.reports()
    fallback = sorted({n for r in reports for n in r.fallback})
    reasons = {n: r.reasons.get(n, "") for r in reports for n in r.fallback}
    outcome = "wrong" if problem else "fallback" if fallback else "compiled"
    return {"outcome": outcome, "detail": problem, "fallback": fallback, "reasons": reasons}


def failed(info: object, sample: object, error: Exception) -> dict[str, object]:
    """An exception: Dynamo's, if it comes without a compiler as well, or ours."""
    text = f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]
    torch._dynamo.reset()
    try:
        call(torch.compile(info.op, backend="aot_eager", fullgraph=True, dynamic=False), sample)
    except Exception:
        return {"outcome": "refused", "detail": text}
    return {"outcome": "crash", "detail": text}


def results(job: dict[str, object]) -> Iterator[dict[str, object]]:
    """The outcomes of the samples of one job."""
    info = operator(job["name"], job["variant"])
    found = samples(info, getattr(torch, job["dtype"]))
    for number in spread(len(found), job["limit"]):
        if number >= job["first"]:
            yield {"started": number}
            yield {"sample": number, **judge(info, found[number])}
    yield {"done": True, "samples": len(found)}


def unseeded(function: Callable[..., object], *args: object, **kwargs: object) -> object:
    """In place of a wrapper that Dynamo cannot trace: `call` sets the seed."""
    return function(*args, **kwargs)


def main() -> None:
    common_methods_invocations.wrapper_set_seed = unseeded
    torch.set_num_threads(1)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        for result in results(json.loads(line)):
            print(json.dumps(result), file=out, flush=True)


if __name__ == "__main__":
    main()
