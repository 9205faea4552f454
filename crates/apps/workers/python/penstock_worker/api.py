"""The functions that an application may call beside answering requests.

`penstock_worker.prevent_fork(reason)` while the code loads, or `environ["penstock.prevent_fork"]`
in a request: no process may be forked from this one. `mark_as_io_bound` and `extend_timeout` belong
to a request, and so to its slot (`wire.Slot`). `template` asks `fork_prevented_reason` before it
sends READY.
"""

from __future__ import annotations

from typing import Optional

_prevent_reason: Optional[str] = None


def prevent_fork(reason: str = "") -> None:
    """Says that nothing may be forked from this process, for example because it holds a connection
    that two processes cannot share. The first reason stays."""
    global _prevent_reason
    if _prevent_reason is None:
        _prevent_reason = str(reason)[:200] or "the application said prevent_fork"


def fork_prevented_reason() -> Optional[str]:
    """Why nothing may be forked, if so."""
    return _prevent_reason


def unsupported_in_reactor(_seconds: float = 0) -> bool:
    """Stands for what belongs to a slot where there is none: in a reactor."""
    return False
