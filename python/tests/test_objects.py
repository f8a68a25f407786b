"""Collectives of Python objects, between real processes."""

import threading
from typing import Any

import numpy as np
import pytest

import ringfold


def exchanged(comm: ringfold.Communicator) -> Any:
    own = {"rank": comm.rank, "text": "x" * (1000 * comm.rank), "array": np.arange(comm.rank)}
    told = comm.broadcast_object(own if comm.rank == 1 else None, root=1)
    everyone = comm.all_gather_object(own)
    collected = comm.gather_object([comm.rank], root=comm.world_size - 1)
    return (
        (told["rank"], len(told["text"]), told is own),
        [(len(thing["text"]), thing["array"].tolist()) for thing in everyone],
        collected,
    )


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_every_rank_gets_the_objects(jobs: Any, transport: str) -> None:
    for ranks in (2, 3):
        results = jobs(exchanged, ranks, {"transport": transport}).results()
        for rank, (told, everyone, collected) in enumerate(results):
            assert told == (1, 1000, rank == 1)
            assert everyone == [(1000 * i, list(range(i))) for i in range(ranks)]
            assert collected == ([[i] for i in range(ranks)] if rank == ranks - 1 else None)


def test_a_job_of_one_rank_has_its_own_object() -> None:
    with ringfold.init(rank=0, world_size=1) as comm:
        assert comm.broadcast_object("a") == "a"
        assert comm.all_gather_object(None) == [None]
        assert comm.gather_object(3) == [3]


def unpicklable(comm: ringfold.Communicator) -> Any:
    thing = threading.Lock() if comm.rank == 1 else "fine"
    problems = []
    for call in (
        lambda: comm.broadcast_object(thing, root=1),
        lambda: comm.all_gather_object(thing),
        lambda: comm.gather_object(thing),
    ):
        with pytest.raises((TypeError, ringfold.InvalidArgumentError)) as caught:
            call()
        problems.append((caught.type.__name__, str(caught.value)))
    return problems, comm.all_gather_object(comm.rank)


def test_an_object_that_cannot_be_pickled_fails_on_all_ranks(jobs: Any) -> None:
    for rank, (problems, after) in enumerate(jobs(unpicklable, 3).results()):
        for kind, text in problems:
            if rank == 1:
                assert kind == "TypeError" and "cannot pickle" in text
            else:
                assert (kind, text) == (
                    "InvalidArgumentError",
                    "rank 1 could not pickle its object; see rank 1's error",
                )
        assert after == [0, 1, 2]


class Unreadable:
    """Raises an error when it is unpickled, but not when it is pickled."""

    def __reduce__(self) -> Any:
        return int, ("not a number",)


def unreadable(comm: ringfold.Communicator) -> Any:
    with pytest.raises(ValueError, match="not a number"):
        comm.all_gather_object(Unreadable() if comm.rank == 0 else 1)
    return comm.all_gather_object(comm.rank)


def test_an_object_that_cannot_be_unpickled_leaves_the_communicator_usable(jobs: Any) -> None:
    assert jobs(unreadable, 2).results() == [[0, 1]] * 2


def grouped(comm: ringfold.Communicator) -> Any:
    with pytest.raises(ringfold.InvalidArgumentError, match="cannot be exchanged in a group"):
        with comm.group():
            comm.broadcast_object(1)
    with pytest.raises(ringfold.InvalidArgumentError, match="rank"):
        comm.broadcast_object(1, root=7)
    return comm.broadcast_object(comm.rank)


def test_wrong_calls_are_refused(jobs: Any) -> None:
    assert jobs(grouped, 2).results() == [0, 0]
