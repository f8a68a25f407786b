"""The exception that ends the program; read at exit to notify the other ranks.

`sys.last_value` is not enough: a prompt, a notebook or a test runner also sets it, and continues.
This module therefore wraps the hook that the interpreter calls before it exits, and ignores
exceptions at a prompt.
"""

import sys
from types import TracebackType

_uncaught: BaseException | None = None
_is_installed = False


def install() -> None:
    """Make `sys.excepthook` record its exception and continue as before. Once per process."""
    global _is_installed
    if _is_installed:
        return
    _is_installed = True
    previous = sys.excepthook

    def hook(
        kind: type[BaseException], value: BaseException, traceback: TracebackType | None
    ) -> None:
        remember(value)
        previous(kind, value, traceback)

    sys.excepthook = hook


def remember(error: BaseException | None) -> None:
    """Record the exception that ends the program."""
    global _uncaught
    if not hasattr(sys, "ps1") and not isinstance(error, SystemExit):
        _uncaught = error


def uncaught() -> BaseException | None:
    """The exception of the main thread that ends the program, if any."""
    return _uncaught
