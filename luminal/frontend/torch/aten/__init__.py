"""The ATen table: one small function an operator, in luminal tensors."""
