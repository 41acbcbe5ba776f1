"""The usual layers, with PyTorch's constructor arguments and parameter names.

In: sizes. Out: `Module`s whose `forward` is the function of the same name. Dropout does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod, sqrt
from typing import Any

import numpy as np

from luminal.errors import ArgumentError
from luminal.frontend import functional as F
from luminal.frontend.nn import Module, Parameter, uniform
from luminal.frontend.tensor import Tensor, fail

__all__ = [
    "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "Bilinear", "Conv1d", "Conv2d", "Conv3d",
    "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d", "Dropout",
    "Dropout2d", "Embedding", "Flatten", "GroupNorm", "InstanceNorm1d", "InstanceNorm2d",
    "InstanceNorm3d", "LayerNorm", "Linear", "PReLU", "RMSNorm", 
    "ZeroPad2d",
]  # fmt: skip

_MODES = {"zeros": "constant", "reflect": "reflect", "replicate": "replicate",
          "circular": "circular"}  # fmt: skip


def _ones(*shape: int) -> Parameter:
    return Parameter(np.ones(shape, np.float32))


def _zeros(*shape: int) -> Parameter:
    return Parameter(np.zeros(shape, np.float32))


def _many(value: Any, n: int) -> tuple[Any, ...]:
    return (value,) * n if isinstance(value, int) else tuple(value)


class Linear(Module):
    """x @ weight.T + bias; weight is [out_features, in_features]."""

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        super().__init__()
        bound = 1 / sqrt(in_features) if in_features else 0.0
        self.in_features, self.out_features = in_features, out_features
        self.weight = uniform(bound, out_features, in_features)
        self.bias = uniform(bound, out_features) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[.., in] to [.., out]."""
        return F.linear(x, self.weight, self.bias)


class Bilinear(Module):
    """a weight b + bias."""

    def __init__(
        self, in1_features: int, in2_features: int, out_features: int, bias: bool = True
    ) -> None:
        super().__init__()
        bound = 1 / sqrt(in1_features)
        self.weight = uniform(bound, out_features, in1_features, in2_features)
        self.bias = uniform(bound, out_features) if bias else None

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """[.., in1] and [.., in2] to [.., out]."""
        return F.bilinear(a, b, self.weight, self.bias)


class _Conv(Module):
    """A convolution over `spatial` axes; weight is [out, in / groups, ..]."""

    spatial = 2

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1,
        padding: Any = 0, dilation: Any = 1, groups: int = 1, bias: bool = True,
        padding_mode: str = "zeros",
    ) -> None:  # fmt: skip
        super().__init__()
        if padding_mode not in _MODES:
            raise fail(ArgumentError, "conv", f"Got padding_mode={padding_mode!r}; try 'zeros'.")
        size = _many(kernel_size, self.spatial)
        bound = 1 / sqrt(in_channels // groups * prod(size))
        self.stride, self.padding, self.dilation, self.groups = stride, padding, dilation, groups
        self.kernel_size, self.padding_mode = size, padding_mode
        self.weight = uniform(bound, out_channels, in_channels // groups, *size)
        self.bias = uniform(bound, out_channels) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[n, in, ..] to [n, out, ..]."""
        padding = self.padding
        if self.padding_mode != "zeros" and padding != "valid":
            if padding == "same":
                spread = _many(self.dilation, self.spatial)
                totals = [d * (k - 1) for d, k in zip(spread, self.kernel_size, strict=True)]
                pairs = [(t // 2, t - t // 2) for t in totals]
            else:
                pairs = [(p, p) for p in _many(padding, self.spatial)]
            x = F.pad(x, [v for pair in reversed(pairs) for v in pair], _MODES[self.padding_mode])
            padding = 0
        return F.convolution(
            x, self.weight, self.bias, self.stride, padding, self.dilation, self.groups
        )


class _ConvTranspose(Module):
    """A transposed convolution over `spatial` axes; weight is [in, out / groups, ..]."""

    spatial = 2

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Any, stride: Any = 1,
        padding: Any = 0, output_padding: Any = 0, groups: int = 1, bias: bool = True,
        dilation: Any = 1,
    ) -> None:  # fmt: skip
        super().__init__()
        size = _many(kernel_size, self.spatial)
        bound = 1 / sqrt(out_channels // groups * prod(size))
        self.stride, self.padding, self.output_padding = stride, padding, output_padding
        self.groups, self.dilation = groups, dilation
        self.weight = uniform(bound, in_channels, out_channels // groups, *size)
        self.bias = uniform(bound, out_channels) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[n, in, ..] to [n, out, ..]."""
        return F.conv_transpose(
            x, self.weight, self.bias, self.stride, self.padding, self.output_padding, self.groups,
            self.dilation,
        )  # fmt: skip


class _BatchNorm(Module):
    """Standardised per channel by the running statistics."""

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float | None = 0.1,
        affine: bool = True, track_running_stats: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.eps = eps
        self.weight = _ones(num_features) if affine else None
        self.bias = _zeros(num_features) if affine else None
        mean, spread = np.zeros(num_features, np.float32), np.ones(num_features, np.float32)
        self.running_mean: Tensor | None = None
        self.running_var: Tensor | None = None
        if track_running_stats:
            self.register_buffer("running_mean", mean)
            self.register_buffer("running_var", spread)

    def forward(self, x: Tensor) -> Tensor:
        """[n, c, ..] standardised."""
        return F.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, False, self.eps
        )


class _InstanceNorm(Module):
    """Standardised per sample and channel."""

    def __init__(
        self, num_features: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = False,
        track_running_stats: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.eps = eps
        self.weight = _ones(num_features) if affine else None
        self.bias = _zeros(num_features) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        """[n, c, ..] standardised."""
        return F.instance_norm(x, self.weight, self.bias, self.eps)


class LayerNorm(Module):
    """Standardised over the last axes."""

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float = 1e-5,
        elementwise_affine: bool = True, bias: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape, self.eps = _many(normalized_shape, 1), eps
        self.weight = _ones(*self.normalized_shape) if elementwise_affine else None
        self.bias = _zeros(*self.normalized_shape) if elementwise_affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        """x standardised."""
        return F.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)


class RMSNorm(Module):
    """Divided by the root mean square over the last axes."""

    def __init__(
        self, normalized_shape: int | Sequence[int], eps: float | None = None,
        elementwise_affine: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.normalized_shape, self.eps = _many(normalized_shape, 1), eps
        self.weight = _ones(*self.normalized_shape) if elementwise_affine else None

    def forward(self, x: Tensor) -> Tensor:
        """x normalised."""
        return F.rms_norm(x, self.normalized_shape, self.weight, self.eps)


class GroupNorm(Module):
    """Standardised per group of channels."""

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True
    ) -> None:
        super().__init__()
        self.num_groups, self.eps = num_groups, eps
        self.weight = _ones(num_channels) if affine else None
        self.bias = _zeros(num_channels) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        """[n, c, ..] standardised."""
        return F.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)


class Embedding(Module):
    """Rows of weight [num_embeddings, embedding_dim] by index."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: int | None = None
    ) -> None:
        super().__init__()
        self.weight = uniform(1.0, num_embeddings, embedding_dim)

    def forward(self, index: Tensor) -> Tensor:
        """[..] of integers to [.., embedding_dim]."""
        return F.embedding(index, self.weight)


class PReLU(Module):
    """x, times a learnt slope below 0."""

    def __init__(self, num_parameters: int = 1, init: float = 0.25) -> None:
        super().__init__()
        self.weight = Parameter(np.full(num_parameters, init, np.float32))

    def forward(self, x: Tensor) -> Tensor:
        """x with slopes."""
        return F.prelu(x, self.weight)


class Dropout(Module):
    """x itself: inference drops nothing."""

    def __init__(self, p: float = 0.5, inplace: bool = False) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """x."""
        return x


Dropout2d = Dropout


class _Applied(Module):
    """A module without parameters: a function and its options."""

    function: Callable[..., Any]
    names: tuple[str, ...] = ()

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__()
        options = dict(zip(self.names, args, strict=False)) | options
        options.pop("inplace", None)
        self.options = options

    def forward(self, *args: Any) -> Any:
        """The function's result."""
        return type(self).function(*args, **self.options)


_POOL = ("kernel_size", "stride", "padding")
_FUNCTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "ReLU": ("relu", ("inplace",)), "ReLU6": ("relu6", ("inplace",)),
    "SiLU": ("silu", ("inplace",)),
    "GELU": ("gelu", ("approximate",)), "Sigmoid": ("sigmoid", ()), "Tanh": ("tanh", ()),
    "Softmax": ("softmax", ("dim",)), "LogSoftmax": ("log_softmax", ("dim",)),
    "Softmin": ("softmin", ("dim",)), "LeakyReLU": ("leaky_relu", ("negative_slope", "inplace")),
    "ELU": ("elu", ("alpha", "inplace")), "CELU": ("celu", ("alpha", "inplace")),
    "SELU": ("selu", ("inplace",)), "Mish": ("mish", ("inplace",)),
    "Hardswish": ("hardswish", ("inplace",)), "Hardsigmoid": ("hardsigmoid", ("inplace",)),
    "Hardtanh": ("hardtanh", ("min_val", "max_val", "inplace")),
    "Hardshrink": ("hardshrink", ("lambd",)), "Softshrink": ("softshrink", ("lambd",)),
    "Softplus": ("softplus", ("beta", "threshold")), "Softsign": ("softsign", ()),
    "Tanhshrink": ("tanhshrink", ()), "LogSigmoid": ("logsigmoid", ()), "GLU": ("glu", ("dim",)),
    "Threshold": ("threshold", ("threshold", "value", "inplace")),
    "PixelShuffle": ("pixel_shuffle", ("upscale_factor",)),
    "PixelUnshuffle": ("pixel_unshuffle", ("downscale_factor",)),
    **{f"MaxPool{n}d": (f"max_pool{n}d", (*_POOL, "dilation", "return_indices", "ceil_mode"))
       for n in (1, 2, 3)},
    **{f"AvgPool{n}d": (f"avg_pool{n}d",
                        (*_POOL, "ceil_mode", "count_include_pad", "divisor_override"))
       for n in (1, 2, 3)},
    **{f"AdaptiveAvgPool{n}d": (f"adaptive_avg_pool{n}d", ("output_size",)) for n in (1, 2, 3)},
    **{f"AdaptiveMaxPool{n}d": (f"adaptive_max_pool{n}d", ("output_size",)) for n in (1, 2, 3)},
    **{f"LPPool{n}d": (f"lp_pool{n}d", ("norm_type", "kernel_size", "stride", "ceil_mode"))
       for n in (1, 2)},
    "CrossEntropyLoss": ("cross_entropy", ("weight",)), "MSELoss": ("mse_loss", ()),
    "L1Loss": ("l1_loss", ()), "NLLLoss": ("nll_loss", ("weight",)), "BCELoss":
    ("binary_cross_entropy", ("weight",)), "KLDivLoss": ("kl_div", ()), "BCEWithLogitsLoss":
    ("binary_cross_entropy_with_logits", ("weight",)), "SmoothL1Loss": ("smooth_l1_loss", ()),
    "HuberLoss": ("huber_loss", ()), "CosineSimilarity": ("cosine_similarity", ("dim", "eps")),
    "Upsample": ("interpolate", ("size", "scale_factor", "mode", "align_corners")),
    "Unflatten": ("unflatten", ("dim", "sizes")),
}  # fmt: skip


def _applied(name: str, function: Callable[..., Any], names: tuple[str, ...]) -> type[_Applied]:
    text = f"`functional.{function.__name__}` as a module.\n\n{function.__doc__}"
    members = {"function": staticmethod(function), "names": names, "__doc__": text}
    return type(name, (_Applied,), {**members, "__module__": __name__})


def _spatial(base: type[Module], stem: str) -> dict[str, type[Module]]:
    members = {"__doc__": base.__doc__, "__module__": __name__}
    return {
        f"{stem}{n}d": type(f"{stem}{n}d", (base,), {**members, "spatial": n}) for n in (1, 2, 3)
    }


Conv1d, Conv2d, Conv3d = _spatial(_Conv, "Conv").values()
ConvTranspose1d, ConvTranspose2d, ConvTranspose3d = _spatial(
    _ConvTranspose, "ConvTranspose"
).values()
BatchNorm1d, BatchNorm2d, BatchNorm3d = _spatial(_BatchNorm, "BatchNorm").values()
InstanceNorm1d, InstanceNorm2d, InstanceNorm3d = _spatial(_InstanceNorm, "InstanceNorm").values()
for _name, (_function, _names) in _FUNCTIONS.items():
    globals()[_name] = _applied(_name, getattr(F, _function), _names)


class Flatten(Module):
    """Axes from start_dim to end_dim as one."""

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = start_dim, end_dim

    def forward(self, x: Tensor) -> Tensor:
        """x flattened."""
        return F.flatten(x, self.start_dim, self.end_dim)


class ZeroPad2d(Module):
    """Zeros around the last two axes: left, right, top, bottom."""

    def __init__(self, padding: int | Sequence[int]) -> None:
        super().__init__()
        self.padding = _many(padding, 4)

    def forward(self, x: Tensor) -> Tensor:
        """x padded."""
        return F.pad(x, self.padding)


__all__ = sorted({*__all__, *_FUNCTIONS})
