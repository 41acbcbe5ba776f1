"""What luminal found for a compiled thing, and why it won: as text and as a page for a browser.

In: anything compiled. Out: text; a self-contained HTML file. Measures kernels where asked, changes
nothing.
"""

from luminal.explanation.explain import explain

__all__ = ["explain"]
