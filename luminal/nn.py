"""`luminal.nn`: modules with PyTorch's names, arguments and state dicts.

In: nothing. Out: the public names of `luminal.frontend.nn*`.
"""

from luminal.frontend import functional, nn, nn_attention, nn_layers, nn_recurrent
from luminal.frontend.nn import *  # noqa: F403
from luminal.frontend.nn_attention import *  # noqa: F403
from luminal.frontend.nn_layers import *  # noqa: F403
from luminal.frontend.nn_recurrent import *  # noqa: F403

__all__ = [
    *nn.__all__,
    *nn_layers.__all__,
    *nn_attention.__all__,
    *nn_recurrent.__all__,
    "functional",
]
