"""The hand-over types between the stages, and the vocabulary that they are made of: dtypes, integer
expressions, views, terms. Oracle, text and checks are in modules of their own."""

from luminal.ir.canonical import *
from luminal.ir.dtype import *
from luminal.ir.expr import *
from luminal.ir.graph import *
from luminal.ir.launch import *
from luminal.ir.layout import *
from luminal.ir.matrix import *
from luminal.ir.ops import *
from luminal.ir.plan import *
from luminal.ir.program import *
from luminal.ir.space import *
from luminal.ir.target import *
from luminal.ir.term import *
from luminal.ir.view import *
