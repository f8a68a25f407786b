"""What is open, and how it ends when the interpreter exits."""

import atexit
import weakref
from abc import ABC, abstractmethod
from types import TracebackType
from typing import Self

from ringfold import _uncaught
from ringfold.errors import RingfoldError, in_words

GRACE_S = 1.0
"""How long interpreter exit waits for calls in daemon threads."""


class Open(ABC):
    """What ranks have together until it is closed.

    As a context manager, it is closed at the end, or aborted on all ranks if an exception leaves
    the block.
    """

    @abstractmethod
    def abort(self, reason: str) -> None:
        """End it on all ranks."""

    @abstractmethod
    def close(self) -> None:
        """Free all resources of this rank."""

    @abstractmethod
    def _close_at_exit(self) -> None:
        """`close` as the interpreter's exit needs it."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self.abort(in_words(error))
        self.close()


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
