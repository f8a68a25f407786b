"""Errors: one class per kind of error of the core, which raises them; attributes carry the details.

After `PeerFailed`, `Timeout`, `Mismatch`, `Corrupt` or `Aborted` the communicator is unusable:
outputs hold undefined data, every later call raises the same error, and only `close` remains. After
the others it remains usable.
"""


def in_words(error: BaseException) -> str:
    """An exception as the reason of an abort, which the other ranks see."""
    name, text = type(error).__name__, str(error)
    return f"{name}: {text}" if text else name


class RingfoldError(RuntimeError):
    """The base of all errors of ringfold."""


class PeerFailed(RingfoldError):
    """A peer died, or left while it was still needed."""

    rank: int
    """The rank that is gone."""
    reason: str
    """How the failure was detected."""


class Timeout(RingfoldError, TimeoutError):
    """A call's deadline passed."""

    waiting_for: list[int]
    """The ranks that did not arrive, as far as is known."""
    after_ms: int
    """The time waited."""


class Mismatch(RingfoldError):
    """Two ranks are in different calls: the program is wrong."""

    ranks: tuple[int, int]
    """The two ranks; the one that detected the mismatch comes first."""
    calls: tuple[str, str]
    """The call that each of them is in."""


class Corrupt(RingfoldError):
    """Data from a peer is invalid."""

    peer: int
    """The sender."""


class Aborted(RingfoldError):
    """A rank called `abort`."""

    rank: int
    """The rank that called it."""
    reason: str
    """The reason it gave."""


class Closed(RingfoldError):
    """The communicator was closed on this rank."""


class InvalidArgument(RingfoldError, ValueError):
    """An argument is wrong; the text says which and how."""


class Unsupported(RingfoldError, NotImplementedError):
    """The build, the machine or the data type does not support the request."""


class BootstrapError(RingfoldError):
    """The ranks could not join; the text says what was tried."""


class RingfoldSystemError(RingfoldError, OSError):
    """A system call failed."""
