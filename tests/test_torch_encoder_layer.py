"""nn.TransformerEncoderLayer in eval mode: PyTorch's fused operator compiles, with every mask."""

import pytest
import torch

import luminal.torch

MASKS = {
    "none": {},
    "causal": {"src_mask": torch.ones(6, 6, dtype=torch.bool).triu(1)},
    "causal float": {"src_mask": torch.nn.Transformer.generate_square_subsequent_mask(6)},
    "padding": {"src_key_padding_mask": torch.arange(6) >= torch.tensor([[4], [6]])},
    "both": {
        "src_mask": torch.ones(6, 6, dtype=torch.bool).triu(1),
        "src_key_padding_mask": torch.arange(6) >= torch.tensor([[4], [6]]),
    },
}


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("norm_first", [False, True])
def test_fused_layer(mask, norm_first):
    torch.manual_seed(0)
    torch._dynamo.reset()
    luminal.torch.clear()
    layer = torch.nn.TransformerEncoderLayer(
        16, 2, 32, activation="gelu" if norm_first else "relu", batch_first=True,
        norm_first=norm_first,
    ).eval()  # fmt: skip
    options = {"search": "off", "fallback": "error"}
    fast = torch.compile(layer, backend="luminal", options=options)
    x = torch.randn(2, 6, 16)
    with torch.no_grad():
        expected, got = layer(x, **MASKS[mask]), fast(x, **MASKS[mask])
    assert torch.allclose(got, expected, atol=2e-5)
    (report,) = luminal.torch.reports()
    assert not report.fallback and report.kernels
