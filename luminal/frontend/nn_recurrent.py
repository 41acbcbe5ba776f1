"""Recurrent layers, unrolled over a fixed length, with PyTorch's parameter names.

In: sizes. Out: `LSTM`, `GRU` and `RNN` modules. Long sequences make long graphs.
"""

from __future__ import annotations

from math import sqrt
from typing import Any

from luminal.frontend import functional as F
from luminal.frontend.nn import Module, uniform
from luminal.frontend.tensor import Tensor

__all__ = ["GRU", "LSTM", "RNN"]


class _Recurrent(Module):
    """Layers of cells run over a sequence [length, n, input] (or batch first)."""

    gates = 1

    def __init__(
        self, input_size: int, hidden_size: int, num_layers: int = 1, bias: bool = True,
        batch_first: bool = False, dropout: float = 0.0, bidirectional: bool = False,
        nonlinearity: str = "tanh",
    ) -> None:  # fmt: skip
        super().__init__()
        self.hidden_size, self.num_layers, self.batch_first = hidden_size, num_layers, batch_first
        self.directions = 2 if bidirectional else 1
        self.nonlinearity, self.has_bias = nonlinearity, bias
        bound, rows = 1 / sqrt(hidden_size), self.gates * hidden_size
        for layer in range(num_layers):
            width = input_size if layer == 0 else hidden_size * self.directions
            for end in self._ends(layer):
                setattr(self, f"weight_ih{end}", uniform(bound, rows, width))
                setattr(self, f"weight_hh{end}", uniform(bound, rows, hidden_size))
                if bias:
                    setattr(self, f"bias_ih{end}", uniform(bound, rows))
                    setattr(self, f"bias_hh{end}", uniform(bound, rows))

    def _ends(self, layer: int) -> list[str]:
        return [f"_l{layer}", f"_l{layer}_reverse"][: self.directions]

    def _cell(self, gates: Tensor, own: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The next state from the gates of the input and of the state."""
        raise NotImplementedError

    def _run(self, x: Tensor, end: str, state: tuple[Tensor, ...], back: bool) -> Any:
        w, b = getattr(self, f"weight_ih{end}"), getattr(self, f"bias_ih{end}", None)
        own_w, own_b = getattr(self, f"weight_hh{end}"), getattr(self, f"bias_hh{end}", None)
        inputs = F.linear(x, w, b)
        steps = range(len(x))
        outs = []
        for t in reversed(steps) if back else steps:
            state = self._cell(inputs[t], F.linear(state[0], own_w, own_b), state)
            outs.append(state[0])
        return F.stack(outs[::-1] if back else outs), state

    def forward(self, x: Tensor, initial: Any = None) -> Any:
        """All outputs of the last layer, and the last state of every layer and direction."""
        batched = x.ndim == 3
        x = x if batched else F.unsqueeze(x, 0 if self.batch_first else 1)
        x = F.transpose(x, 0, 1) if self.batch_first else x
        parts = 2 if isinstance(self, LSTM) else 1
        if initial is None:
            zero = F.zeros(x.shape[1], self.hidden_size, dtype=x.dtype)
            first = [[zero] * (self.num_layers * self.directions)] * parts
        else:
            given = initial if isinstance(initial, tuple) else (initial,)
            first = [(t if batched else F.unsqueeze(t, 1)).unbind(0) for t in given]
        last: list[tuple[Tensor, ...]] = []
        for layer in range(self.num_layers):
            outs = []
            for end in self._ends(layer):
                out, state = self._run(
                    x, end, tuple(f[len(last)] for f in first), end.endswith("reverse")
                )
                outs.append(out)
                last.append(state)
            x = F.cat(outs, -1) if len(outs) > 1 else outs[0]
        x = F.transpose(x, 0, 1) if self.batch_first else x
        finals = tuple(F.stack([s[p] for s in last]) for p in range(parts))
        if not batched:
            x = F.squeeze(x, 0 if self.batch_first else 1)
            finals = tuple(F.squeeze(f, 1) for f in finals)
        return x, finals if parts == 2 else finals[0]


class RNN(_Recurrent):
    """tanh (or relu) of the input's and the state's linear maps."""

    def _cell(self, gates: Tensor, own: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        total = gates + own
        return (F.relu(total) if self.nonlinearity == "relu" else F.tanh(total),)


class LSTM(_Recurrent):
    """Long short-term memory."""

    gates = 4

    def _cell(self, gates: Tensor, own: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        enter, forget, new, leave = (gates + own).chunk(4, -1)
        memory = F.sigmoid(forget) * state[1] + F.sigmoid(enter) * F.tanh(new)
        return F.sigmoid(leave) * F.tanh(memory), memory


class GRU(_Recurrent):
    """Gated recurrent unit."""

    gates = 3

    def _cell(self, gates: Tensor, own: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (r, z, n), (own_r, own_z, own_n) = gates.chunk(3, -1), own.chunk(3, -1)
        keep = F.sigmoid(z + own_z)
        new = F.tanh(n + F.sigmoid(r + own_r) * own_n)
        return ((1 - keep) * new + keep * state[0],)
