"""luminal as a backend of torch.compile. Needs PyTorch; nothing else in luminal imports it."""

from luminal.frontend.torch.backend import backend

__all__ = ["backend"]
