"""What can go wrong. One class for each kind of error of the core, which makes them; the attributes say what it knows.

After `PeerFailed`, `Timeout`, `Mismatch`, `Corrupt` or `Aborted` the communicator is dead: outputs hold undefined data,
every later call raises the same, and only `close` remains. The others leave it usable.
"""


def in_words(error: BaseException) -> str:
    """An exception as the reason of an abort: what the other ranks read."""
    name, text = type(error).__name__, str(error)
    return f"{name}: {text}" if text else name


class RingfoldError(RuntimeError):
    """The base of all errors of ringfold."""


class PeerFailed(RingfoldError):
    """A peer died, or left while it was still needed."""

    rank: int
    """The rank that is gone."""
    reason: str
    """How it was noticed."""


class Timeout(RingfoldError, TimeoutError):
    """A call's deadline passed."""

    waiting_for: list[int]
    """The ranks that did not come, as far as it could be found out."""
    after_ms: int
    """How long was waited."""


class Mismatch(RingfoldError):
    """Two ranks are in different calls: the program is wrong."""

    ranks: tuple[int, int]
    """The two ranks; the one that noticed stands first."""
    calls: tuple[str, str]
    """The call that each of them is in."""


class Corrupt(RingfoldError):
    """What a peer sent is not what it can have sent."""

    peer: int
    """The sender."""


class Aborted(RingfoldError):
    """Somebody called `abort`."""

    rank: int
    """The rank that did."""
    reason: str
    """What it gave as its reason."""


class Closed(RingfoldError):
    """The communicator was closed on this rank."""


class InvalidArgument(RingfoldError, ValueError):
    """An argument is wrong; the text says which and how."""


class Unsupported(RingfoldError, NotImplementedError):
    """Something that this build, machine or data type does not offer."""


class BootstrapError(RingfoldError):
    """The ranks could not be brought together; the text says what was tried."""


class RingfoldSystemError(RingfoldError, OSError):
    """The system refused something."""
