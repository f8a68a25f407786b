"""Joining of ranks that exchange an address as a line of text."""

import os
from typing import Any

import numpy as np
import pytest

import ringfold
from ringfold import _native

SECRET = "known to these tests alone"
TEXT_BYTES = 4096


def tell(comm: ringfold.Communicator, text: str) -> str:
    """Broadcast rank 0's `text` to all ranks."""
    line = np.zeros(TEXT_BYTES, "uint8")
    encoded = text.encode()
    line[: len(encoded)] = np.frombuffer(encoded, "uint8")
    return bytes(comm.broadcast(line, out=line)).rstrip(b"\0").decode()


def meet(comm: ringfold.Communicator) -> Any:
    # Explicit ranks ignore a launcher's variables.
    os.environ.update(JOB_COMPLETION_INDEX="x", WORLD_SIZE="x", RINGFOLD_LOCAL_WORLD_SIZE="2")
    listener = _native.RendezvousListener.open() if comm.rank == 0 else None
    address = tell(comm, "" if listener is None else listener.address)
    where: dict[str, Any] = {"listener": listener} if listener else {"address": address}
    native = _native.Communicator.connect(
        rank=comm.rank, world_size=comm.world_size, secret=SECRET, **where
    )
    with ringfold.Communicator(native) as met:
        return int(met.all_reduce(np.array([1 << met.rank]))[0]), met.hosts, met.local_size


def test_ranks_meet_by_an_address_that_they_pass_on(jobs: Any) -> None:
    assert jobs(meet, 3).results() == [(0b111, 1, 3)] * 3


def test_an_address_is_a_list_of_places() -> None:
    first, *others = _native.RendezvousListener.open("localhost").address.split(",")
    assert first.startswith("unix:@ringfold-") and others
    for place in others:
        host, _, port = place.rpartition(":")
        assert host and 0 < int(port) < 1 << 16


def test_a_meeting_is_good_for_one_communicator() -> None:
    listener = _native.RendezvousListener.open()
    arguments: dict[str, Any] = {"rank": 0, "world_size": 1, "secret": SECRET, "listener": listener}
    ringfold.Communicator(_native.Communicator.connect(**arguments)).close()
    with pytest.raises(ringfold.InvalidArgumentError, match="used already"):
        _native.Communicator.connect(**arguments)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"rank": 1, "secret": SECRET}, "rank 1"),
        ({"rank": 0, "secret": SECRET, "address": "127.0.0.1:1"}, "an address"),
        ({"rank": 0}, "RINGFOLD_SECRET"),
    ],
)
def test_what_does_not_go_with_a_meeting_is_said(arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ringfold.RingfoldError, match=problem):
        _native.Communicator.connect(
            world_size=2, listener=_native.RendezvousListener.open(), connect_timeout=5, **arguments
        )


def host(comm: ringfold.Communicator) -> str:
    return _native.host_id()


def test_processes_of_a_host_have_its_name(jobs: Any) -> None:
    assert jobs(host, 2).results() == [_native.host_id()] * 2
