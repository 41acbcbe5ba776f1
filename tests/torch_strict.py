"""Functions compiled for the oracle by the torch backend, where nothing may fall back to eager."""

import pytest
import torch

import luminal.torch


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch.manual_seed(0)


def compiled(function):
    options = {"executor": "oracle", "fallback": "error"}
    return torch.compile(function, backend=luminal.torch.backend, options=options)
