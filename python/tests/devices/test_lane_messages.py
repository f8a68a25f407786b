"""Groups of messages between devices, of which ranks have different numbers."""

from typing import Any

import numpy as np
import pytest
import softcuda

import ringfold
from ringfold._lane import DeviceRequest, Lane

COUNT = 5000
"""Elements of several slices."""

SIZES: Any = {"slot_bytes": 4096, "depth": 2}


@pytest.fixture(autouse=True)
def driver(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ranks use the software driver."""
    monkeypatch.setenv("RINGFOLD_CUDA_LIBRARY", str(softcuda.library()))


class Messages:
    """Messages of one rank, to be made in one group."""

    def __init__(self, program: Any) -> None:
        self._program = program
        self.requests: list[DeviceRequest] = []
        self._received: list[tuple[Any, Any]] = []

    def send(self, peer: int, values: Any) -> None:
        self._add("send", peer, self._program.upload(values), values)

    def recv(self, peer: int, expected: Any) -> None:
        place = self._program.upload(np.zeros_like(expected))
        self._add("recv", peer, place, expected)
        self._received.append((place, expected))

    def _add(self, name: str, peer: int, place: int, values: Any) -> None:
        side: list[tuple[int, int]] = [(place, values.nbytes)]
        none: list[tuple[int, int]] = []
        sides = (side, none) if name == "send" else (none, side)
        count = values.size
        self.requests.append(DeviceRequest(name, str(values.dtype), count, *sides, root=peer))

    def wrong(self) -> list[int]:
        """The numbers of the receives that have not got their message."""
        found = [self._program.download(place, expected) for place, expected in self._received]
        pairs = zip(found, self._received, strict=True)
        return [index for index, (got, (_, right)) in enumerate(pairs) if not (got == right).all()]


def message(sender: int, receiver: int, index: int = 0) -> Any:
    """Of a length of its own."""
    count = COUNT // (1 + index) + 10 * sender + receiver
    return np.arange(count, dtype=np.int32) + 1000 * (100 * sender + 10 * receiver + index)


def scatter(messages: Messages, rank: int, ranks: int) -> None:
    """Rank 0 sends one to each other rank."""
    for other in range(1, ranks) if rank == 0 else [0]:
        name = messages.send if rank == 0 else messages.recv
        name(other, message(0, other or rank))


def exchange(messages: Messages, rank: int, ranks: int) -> None:
    """Each rank sends two to each rank, itself among them, in an order of its own."""
    for step in range(ranks):
        other = (3 * rank + step) % ranks
        for index in range(2):
            messages.recv(other, message(other, rank, index))
        for index in range(2):
            messages.send(other, message(rank, other, index))


def chain(messages: Messages, rank: int, ranks: int) -> None:
    """Ranks have many messages with one neighbour, and a long one with the other behind them."""
    before, after = (rank - 1) % ranks, (rank + 1) % ranks
    for index in range(1, 6):
        messages.send(after, message(rank, after, index))
    for index in range(1, 6):
        messages.recv(before, message(before, rank, index))
    messages.send(before, message(rank, before))
    messages.recv(after, message(after, rank))


PATTERNS = {"scatter": scatter, "exchange": exchange, "chain": chain}


def carry_out(comm: ringfold.Communicator, pattern: str, beside: bool) -> Any:
    program, lane = softcuda.Program(), Lane(comm, **SIZES)
    messages = Messages(program)
    PATTERNS[pattern](messages, comm.rank, comm.world_size)
    requests, ones = messages.requests, np.ones(COUNT, np.float32)
    summed = program.upload(ones)
    if beside:
        # A collective of all ranks, among messages of some.
        place = [(summed, ones.nbytes)]
        request = DeviceRequest("all_reduce", "float32", COUNT, place, place)
        requests.insert(comm.rank % len(requests), request)
    work = lane.enqueue(requests, program.stream)
    work.join(program.stream)
    work.wait()
    total = program.download(summed, ones)
    lane.close()
    return messages.wrong(), float(total[0]), float(total[-1])


@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside"])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_ranks_have_different_messages_in_a_group(jobs: Any, pattern: str, beside: bool) -> None:
    total = 3.0 if beside else 1.0
    found = jobs(carry_out, 3, pattern=pattern, beside=beside).results()
    assert found == [([], total, total)] * 3
