"""Other ways to run a PyTorch model on this machine: `PEERS[name](model, inputs, threads)` makes a
callable without arguments that runs it once on these inputs and returns its first output, or
raises where the peer is not installed or cannot run the model.
"""

import contextlib
import io
import logging
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

Run = Callable[[], object]


def luminal(model: nn.Module, inputs: tuple[Tensor, ...], threads: int) -> Run:
    torch._dynamo.reset()
    run = torch.compile(model.forward, backend="luminal", dynamic=False)
    return lambda: run(*inputs)


def eager(model: nn.Module, inputs: tuple[Tensor, ...], threads: int) -> Run:
    return lambda: model(*inputs)


def inductor(model: nn.Module, inputs: tuple[Tensor, ...], threads: int) -> Run:
    """PyTorch's compiler with weights as constants, as luminal's repacked ones are."""
    options = {"freezing": True}
    run = torch.compile(model.forward, backend="inductor", dynamic=False, options=options)
    return lambda: run(*inputs)


@cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="luminal-bench-")


def _onnx(model: nn.Module, inputs: tuple[Tensor, ...]) -> Path:
    path = Path(_folder().name) / f"{id(model)}.onnx"
    if not path.exists():
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            torch.onnx.export(model, inputs, path, dynamo=True, optimize=True, verbose=False)
    return path


def onnxruntime(model: nn.Module, inputs: tuple[Tensor, ...], threads: int) -> Run:
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(_onnx(model, inputs), options, ["CPUExecutionProvider"])
    feeds = {i.name: x.numpy() for i, x in zip(session.get_inputs(), inputs, strict=True)}
    return lambda: session.run(None, feeds)[0]


def openvino(model: nn.Module, inputs: tuple[Tensor, ...], threads: int) -> Run:
    import openvino as ov

    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY",
                "INFERENCE_PRECISION_HINT": "f32"}  # fmt: skip
    request = ov.Core().compile_model(str(_onnx(model, inputs)), "CPU", settings)
    request = request.create_infer_request()
    arrays = [x.numpy() for x in inputs]
    return lambda: request.infer(arrays, share_inputs=True, share_outputs=True)[0]


PEERS: dict[str, Callable[[nn.Module, tuple[Tensor, ...], int], Run]] = {
    "luminal": luminal, "eager": eager, "inductor": inductor, "onnxruntime": onnxruntime,
    "openvino": openvino,
}  # fmt: skip


def contenders(
    model: nn.Module, inputs: tuple[Tensor, ...], threads: int, names: tuple[str, ...]
) -> tuple[dict[str, Run], dict[str, str]]:
    """The peers that run this model and agree with eager, and why the others do not."""
    expected = model(*inputs).numpy()
    scale = np.abs(expected).max()
    runs, problems = {}, {}
    for name in names:
        try:
            run = PEERS[name](model, inputs, threads)
            error = float(np.abs(np.asarray(run()) - expected).max() / scale)
            if not error < 2e-3:
                raise ArithmeticError(f"relative error {error:.1e}")
            runs[name] = run
        except Exception as error:
            problems[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"
    if "luminal" in problems:
        raise RuntimeError(problems["luminal"])
    return runs, problems
