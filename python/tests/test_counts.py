"""Counts that differ between ranks are an error on all ranks, and never a wrong result."""

from typing import Any

import numpy as np
import pytest

import ringfold

# Elements per unit of the lists below: several slices a call over TCP, one over shared memory.
SCALE = 1000


def call(
    comm: ringfold.Communicator, what: str, counts: list[int], pairs: tuple[list[int], list[int]]
) -> Any:
    """Make one uneven call with this rank's counts."""
    counts = [count * SCALE for count in counts]
    own = np.full(counts[comm.rank], comm.rank, "float32")
    all_of = np.zeros(sum(counts), "float32")
    if what == "all_gather":
        return comm.all_gather(own, counts=counts)
    if what == "gather":
        return comm.gather(own, 0, counts=counts)
    if what == "reduce_scatter":
        return comm.reduce_scatter(all_of, counts=counts)
    if what == "scatter":
        return comm.scatter(all_of if comm.rank == 0 else None, 0, counts=counts, out=own)
    send, receive = ([count * SCALE for count in part] for part in pairs)
    given = np.zeros(sum(send), "float32")
    return comm.all_to_all(given, send_counts=send, recv_counts=receive)


def disagree(comm: ringfold.Communicator) -> Any:
    endings = {}
    counts = [[1, 3], [2, 2]][comm.rank]
    # Rank 0 sends rank 1 three units, or none; rank 1 expects two.
    pairs = {
        "all_to_all": [([1, 3], [1, 2]), ([2, 2], [2, 2])],
        "nothing": [([1, 0], [1, 2]), ([2, 2], [2, 2])],
    }
    for what in ["all_gather", "gather", "reduce_scatter", "scatter", *pairs]:
        # An error ends a communicator, so each case has its own.
        part = comm.split(0)
        assert part is not None
        for _ in range(10):
            # Fills slots and rings with a value that the calls below must never return.
            part.all_gather(np.full(4 * SCALE, 900.0, "float32"))
        errors: list[tuple[str, str] | None] = []
        try:
            call(part, what, counts, pairs.get(what, [([], []), ([], [])])[comm.rank])
            errors.append(None)
        except ringfold.RingfoldError as error:
            errors.append((type(error).__name__, str(error)))
        try:
            part.barrier()
            errors.append(None)
        except ringfold.RingfoldError as error:
            errors.append((type(error).__name__, str(error)))
        endings[what] = errors
    for asynchronous in (False, True):
        with pytest.raises(ringfold.InvalidArgument, match="from itself"):
            comm.all_to_all(
                np.zeros(4), send_counts=[2, 2], recv_counts=[1, 1], async_=asynchronous
            )
    comm.barrier()
    return endings


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_ranks_with_other_counts_are_told(jobs: Any, transport: str) -> None:
    results = jobs(disagree, 2, {"timeout": 10, "transport": transport}).results()
    for what in results[0]:
        for rank, result in enumerate(results):
            # A rank that receives nothing may finish before another rank reports the mismatch; then
            # the next call reports it.
            first = [ending for ending in result[what] if ending is not None][:1]
            assert first and first[0][0] == "Mismatch" and "counts" in first[0][1], (
                what,
                rank,
                result[what],
            )
        # But a call whose result would be wrong must itself fail.
        wronged = {"gather": [0], "all_gather": [0, 1], "reduce_scatter": [0, 1]}.get(what, [1])
        assert all(results[rank][what][0] is not None for rank in wronged), (what, results)


def reduce_to_each_other(comm: ringfold.Communicator, calls_after: int) -> Any:
    """Reduce as many slices as there are slots; two ranks each name the other as the root."""
    x = np.ones(65536)
    try:
        comm.reduce(x, 1 - comm.rank, "min")
        for _ in range(calls_after):
            comm.gather(x, 0)
        comm.all_reduce(x[:2])
        comm.barrier()
    except ringfold.RingfoldError as error:
        return error
    return None


@pytest.mark.parametrize("calls_after", [0, 1, 2, 9])
def test_ranks_that_did_not_meet_are_told_before_their_slots_are_used_again(
    jobs: Any, calls_after: int
) -> None:
    for error in jobs(reduce_to_each_other, 2, calls_after=calls_after).results():
        assert isinstance(error, ringfold.Mismatch), repr(error)
        # Found either where both ranks use the same memory, or by the next call without a root.
        text = str(error)
        names_roots = "root 0" in text and "root 1" in text
        assert names_roots or "an earlier collective with a root" in text, text
