"""Progress and lateness of ranks."""

from typing import NamedTuple


class Standing(NamedTuple):
    """The progress of a rank. A call has the same number on all ranks, so the numbers show which
    rank is ahead.
    """

    finished: int
    """Number of collectives that the rank has completed."""
    begun: int
    """Number of collectives that the rank has begun."""
    call: str
    """Description of the call in which the rank has been waiting for a while, and of the ranks it
    waits for; empty if the rank is not waiting.
    """


class PeerStats(NamedTuple):
    """A rank's statistics of a peer's lateness."""

    last: int
    """Number of calls in which this peer's first sign was the last that this rank waited for."""
    lateness: float
    """Total lateness of the peer in the calls of `last`, in seconds."""
    most: float
    """Maximum lateness of the peer in one of the calls of `last`, in seconds."""
    waited: float
    """Total time blocked on this peer, including later waits in a call, in seconds."""
    histogram: list[int]
    """Number of the calls of `last` by lateness: below 1024 ns (or too short to be timed), below 2,
    4, 8, ... times that, and all above.
    """


class Stats(NamedTuple):
    """Statistics of a rank's waiting in the collective calls of a communicator."""

    calls: int
    """Number of completed collective calls."""
    arrived_last: int
    """Number of calls in which this rank was last: it did not wait for any peer's first sign."""
    waited: float
    """Total time spent waiting, in seconds."""
    peers: list[PeerStats]
    """Statistics of each peer, by rank; this rank's own entry stays empty."""
