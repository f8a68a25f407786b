"""Progress and lateness of ranks."""

from typing import NamedTuple


class Standing(NamedTuple):
    """The progress of a rank. The numbers are the same for the same call on all ranks, so they show
    which rank is ahead.
    """

    finished: int
    """Collectives that this rank has completed."""
    begun: int
    """Collectives that it has begun."""
    call: str
    """The call that it has been waiting in for a while, and for which rank; empty if it does not
    wait.
    """


class PeerStats(NamedTuple):
    """A rank's statistics of a peer's lateness."""

    last: int
    """Calls in which this peer was the last whose first sign this rank waited for."""
    lateness: float
    """Its total lateness in these calls, in seconds."""
    most: float
    """Its maximum lateness, in seconds."""
    waited: float
    """Seconds blocked on this peer, also later in a call."""
    histogram: list[int]
    """These calls by lateness: below 1024 ns (or too short to be timed), below 2, 4, 8, ... times
    that, and all above.
    """


class Stats(NamedTuple):
    """How a rank waited in the collective calls of a communicator."""

    calls: int
    """Completed collective calls."""
    arrived_last: int
    """Calls in which this rank was the last: it did not wait for the first sign of any peer."""
    waited: float
    """Total seconds spent waiting."""
    peers: list[PeerStats]
    """By rank; this rank's own entry stays empty."""
