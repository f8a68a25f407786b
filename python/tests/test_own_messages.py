"""Messages from a rank to itself."""

from typing import Any

import numpy as np
import pytest

import ringfold

LARGE = 8 << 20
"""Number of elements in 64 MiB. Three such messages are buffered before a receive, not four."""
KEPT = 3


def one(value: float) -> Any:
    return np.full(1, float(value))


def talk_to_oneself(comm: ringfold.Communicator) -> Any:
    own, x, found = comm.rank, np.zeros(1), []
    # Sends before receives: other order, by tag and from any rank.
    for tag, value in ((3, 30.0), (4, 40.0), (4, 41.0)):
        comm.send(one(value), own, tag)
    for tag, peer in ((4, None), (3, own), (4, own)):
        comm.recv(x, peer, tag)
        found.append(x[0])
    # Receives before sends: several receives with one tag.
    large = np.arange(300_000.0)
    places = [np.zeros_like(large) for _ in range(2)]
    started = [comm.recv(place, None, 5, async_=True) for place in places]
    for factor in (1, 2):
        comm.send(factor * large, own, 5)
    for work in started:
        work.wait()
    found += [work.source for work in started]
    found += [bool((place == (index + 1) * large).all()) for index, place in enumerate(places)]
    # In a group, and without elements.
    with comm.group():
        comm.send(one(7), own)
        comm.recv(x, own)
        comm.recv(np.zeros(0), own, 1)
        comm.send(np.zeros(0), own, 1)
    return [*found, x[0]]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_rank_sends_to_itself(jobs: Any, ranks: int) -> None:
    for rank, found in enumerate(jobs(talk_to_oneself, ranks).results()):
        assert found == [40.0, 30.0, 41.0, rank, rank, True, True, 7.0]


def send_too_much(comm: ringfold.Communicator) -> Any:
    """Send more than is buffered: the excess waits for receives, in order, or times out."""
    own, x, small = comm.rank, np.zeros(LARGE), np.zeros(1)
    for index in range(KEPT):
        x[-1] = index
        comm.send(x, own)
    beyond = np.full(LARGE, float(KEPT))
    waiting = [comm.send(each, own, async_=True) for each in (beyond, one(KEPT + 1))]
    # A short message with another tag still fits.
    comm.send(one(-1), own, 1)
    found = [comm.recv(x, own)[-1] for _ in range(KEPT + 1)]
    found += [comm.recv(small, own)[0], comm.recv(small, own, 1)[0]]
    for work in waiting:
        work.wait()
    for _ in range(KEPT):
        comm.send(beyond, own)
    with pytest.raises(ringfold.RingfoldTimeoutError) as caught:
        comm.send(beyond, own, timeout=0.05)
    return found, caught.value.waiting_for


def test_too_much_for_oneself_waits(jobs: Any) -> None:
    assert jobs(send_too_much, 1).results() == [([0.0, 1.0, 2.0, 3.0, 4.0, -1.0], [0])]


def fail_alone(comm: ringfold.Communicator, sends: bool) -> Any:
    """Receive from this rank: a message of another length, or no message."""
    try:
        if sends:
            comm.send(np.zeros(3), comm.rank)
        comm.recv(np.zeros(2), comm.rank, timeout=0.05)
    except ringfold.RingfoldError as error:
        return type(error).__name__, str(error)


def test_what_does_not_fit_or_does_not_come_is_an_error(jobs: Any) -> None:
    ((kind, text),) = jobs(fail_alone, 1, sends=True).results()
    assert kind == "MismatchError" and "recv of 2 float64" in text and "send of 3 float64" in text
    for kind, text in jobs(fail_alone, 2, sends=False).results():
        assert kind in ("RingfoldTimeoutError", "AbortedError") and "rank" in text
