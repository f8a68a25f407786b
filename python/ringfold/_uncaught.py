"""The exception that ends the program, for those who say goodbye at its end.

`sys.last_value` does not tell: a prompt, a notebook or a test runner sets it, too, and goes on. So the hook that the
interpreter calls before it ends is wrapped, and what it prints at a prompt does not count.
"""

import sys
from types import TracebackType

_uncaught: BaseException | None = None
_is_installed = False


def install() -> None:
    """Has `sys.excepthook` remember what it is called with, and go on as before. Once a process."""
    global _is_installed
    if _is_installed:
        return
    _is_installed = True
    previous = sys.excepthook

    def remember(
        kind: type[BaseException], value: BaseException, traceback: TracebackType | None
    ) -> None:
        global _uncaught
        if not hasattr(sys, "ps1"):
            _uncaught = value
        previous(kind, value, traceback)

    sys.excepthook = remember


def uncaught() -> BaseException | None:
    """What ends the program, if it ends by an exception of its main thread."""
    return _uncaught
