"""The C dialects by the kind of their targets."""

from luminal.codegen.cuda import CUDA
from luminal.codegen.metal import METAL
from luminal.codegen.opencl import OPENCL

DIALECTS = {d.name: d for d in (CUDA, METAL, OPENCL)}
