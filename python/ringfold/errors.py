"""Errors: one class per kind of error of the core, which raises them; attributes carry the details.

A class has the core's name of the error and `Error`, after `Ringfold` if Python has a builtin of
that name.

After `PeerFailedError`, `RingfoldTimeoutError`, `MismatchError`, `CorruptError` or `AbortedError`
the communicator is unusable: outputs hold undefined data, every later call raises the same error,
and only `close` remains. After other errors, the communicator remains usable.
"""

from typing import TYPE_CHECKING

from ringfold import _renamed

if not TYPE_CHECKING:
    __getattr__ = _renamed.finder(__name__, _renamed.ERRORS)


def in_words(error: BaseException) -> str:
    """The text of an exception, as the reason of an abort that the other ranks see."""
    name, text = type(error).__name__, str(error)
    return f"{name}: {text}" if text else name


class RingfoldError(RuntimeError):
    """The base of all errors of ringfold."""


class PeerFailedError(RingfoldError):
    """A peer died, or left while it was still needed."""

    rank: int
    """The rank that died or left."""
    reason: str
    """How the failure was detected."""


class RingfoldTimeoutError(RingfoldError, TimeoutError):
    """A call's deadline passed."""

    waiting_for: list[int]
    """The ranks that did not arrive, as far as known."""
    after_ms: int
    """The time waited, in milliseconds."""


class MismatchError(RingfoldError):
    """Two ranks are in different calls: the program is wrong."""

    ranks: tuple[int, int]
    """The two ranks; the one that detected the mismatch comes first."""
    calls: tuple[str, str]
    """The calls of the two ranks, in the same order."""


class CorruptError(RingfoldError):
    """Data from a peer is invalid."""

    peer: int
    """The rank that sent the data."""


class AbortedError(RingfoldError):
    """A rank called `abort`."""

    rank: int
    """The rank that called `abort`."""
    reason: str
    """The reason passed to `abort`."""


class ClosedError(RingfoldError):
    """The communicator was closed on this rank."""


class InvalidArgumentError(RingfoldError, ValueError):
    """An argument is invalid; the text names the argument and the problem."""


class UnsupportedError(RingfoldError, NotImplementedError):
    """The build, the machine or the data type does not support the request."""


class BootstrapError(RingfoldError):
    """The ranks could not join; the text lists the attempts."""


class RingfoldSystemError(RingfoldError, OSError):
    """A system call failed."""
