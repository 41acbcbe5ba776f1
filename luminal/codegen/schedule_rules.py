"""What makes a schedule legal, and the error for those that are not.

In: a kernel and its schedule. Out: nothing, or `IllegalSchedule`. Search obeys these rules; the
lowering relies on them.
"""

from __future__ import annotations

from luminal.errors import LuminalError

__all__ = ["IllegalSchedule"]


class IllegalSchedule(LuminalError):
    """This schedule cannot be lowered; the text says which rule it breaks."""
