"""What is open, and how it ends when the interpreter exits."""

import atexit
import weakref
from typing import Protocol

from ringfold import _uncaught
from ringfold.errors import RingfoldError, in_words

GRACE_S = 1.0
"""How long interpreter exit waits for calls in daemon threads."""


class Open(Protocol):
    """What ranks have together, until it is closed."""

    def abort(self, reason: str) -> None: ...

    def _close_at_exit(self) -> None: ...


_open: "weakref.WeakSet[Open]" = weakref.WeakSet()


def add(opened: Open) -> None:
    """Have `opened` closed at exit."""
    _open.add(opened)
    _uncaught.install()


def discard(closed: Open) -> None:
    """Forget `closed`."""
    _open.discard(closed)


def close_all() -> None:
    """At interpreter exit: say goodbye, or abort with the uncaught exception as the reason."""
    error = _uncaught.uncaught()
    for each in list(_open):
        try:
            if error is not None:
                each.abort(in_words(error))
            each._close_at_exit()
        except RingfoldError:
            # It has failed already, and its user got the error.
            pass


atexit.register(close_all)
