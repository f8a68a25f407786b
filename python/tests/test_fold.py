"""`ringfold.fold` combines arrays as reproducible collectives combine ranks."""

from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ringfold


def arrays(count: int, dtype: Any = np.float32) -> list[Any]:
    """Arrays whose sum depends on the order of additions."""
    random = np.random.default_rng(count)
    values = random.standard_normal((count, 1003)) * 10.0 ** random.integers(-3, 4, (count, 1003))
    return [each.astype(dtype) for each in values]


def tree(values: list[Any]) -> Any:
    if len(values) == 1:
        return values[0]
    half = 1 << (len(values) - 1).bit_length() - 1
    return tree(values[:half]) + tree(values[half:])


@pytest.mark.parametrize("count", range(1, 18))
def test_the_order_is_that_of_the_tree(count: int) -> None:
    inputs = arrays(count)
    before = [each.copy() for each in inputs]
    assert ringfold.fold(inputs).tobytes() == tree(inputs).tobytes()
    assert all((now == was).all() for now, was in zip(inputs, before, strict=True))
    short = arrays(count, ml_dtypes.bfloat16)
    wide = tree([each.astype(np.float32) for each in short]).astype(ml_dtypes.bfloat16)
    assert ringfold.fold(short).tobytes() == wide.tobytes()


def test_an_input_may_be_the_output() -> None:
    inputs = arrays(5)
    expected = tree(inputs)
    assert ringfold.fold(inputs, out=inputs[3]) is inputs[3]
    assert inputs[3].tobytes() == expected.tobytes()
    assert (ringfold.fold(arrays(4), "max") == np.max(arrays(4), axis=0)).all()


def test_wrong_inputs_are_refused() -> None:
    with pytest.raises(ringfold.InvalidArgumentError, match="give one array at least"):
        ringfold.fold([])
    with pytest.raises(ringfold.InvalidArgumentError, match="one type and shape"):
        ringfold.fold([np.zeros(3), np.zeros(4)])
    with pytest.raises(ringfold.InvalidArgumentError, match="one type and shape"):
        ringfold.fold([np.zeros(4, np.float32), np.zeros(2, np.float64)])
    with pytest.raises(ringfold.InvalidArgumentError, match="use sum, and scale"):
        ringfold.fold([np.zeros(3)], "avg")


def of_blocks(comm: ringfold.Communicator, blocks: int) -> list[bytes]:
    """Sums of `blocks` arrays, equally many of each rank, in calls of several sizes."""
    inputs = arrays(blocks)
    each = blocks // comm.world_size
    own = ringfold.fold(inputs[comm.rank * each : (comm.rank + 1) * each])
    whole = comm.all_reduce(own)
    parts = [comm.all_reduce(part) for part in np.array_split(own, 7)]
    assert np.concatenate(parts).tobytes() == whole.tobytes()
    return [whole.tobytes()]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_fewer_ranks_give_the_same_sums(jobs: Any, transport: str) -> None:
    init = {"transport": transport, "tuning": {"reproducible": True}}
    expected = [tree(arrays(8)).tobytes()]
    for ranks in (8, 4, 2, 1):
        for found in jobs(of_blocks, ranks, init=init, blocks=8).results():
            assert found == expected


def of_calls(comm: ringfold.Communicator) -> list[bytes]:
    """Reproducible calls of a communicator that is not, for each collective that reduces."""
    own = arrays(comm.world_size)[comm.rank]
    whole = comm.all_reduce(own, reproducible=True)
    pending = comm.all_reduce(own, reproducible=True, async_=True)
    at_root = comm.reduce(own, root=0, reproducible=True)
    block = comm.reduce_scatter(np.tile(own, comm.world_size), reproducible=True)
    in_full = [whole, pending.wait(), block, *([] if at_root is None else [at_root])]
    with pytest.raises(ringfold.UnsupportedError, match="no reproducible all_reduce"):
        comm.all_reduce(own, algorithm="ring", reproducible=True)
    with pytest.raises(ringfold.UnsupportedError, match="no reproducible reduce "):
        comm.reduce(own, algorithm="ring", reproducible=True)
    return [each.tobytes() for each in in_full]


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_a_call_may_be_reproducible_alone(jobs: Any, transport: str) -> None:
    expected = tree(arrays(5)).tobytes()
    for found in jobs(of_calls, 5, init={"transport": transport}).results():
        assert len(found) >= 3 and set(found) == {expected}


def of_one(comm: ringfold.Communicator) -> str:
    with pytest.raises(ringfold.MismatchError) as caught:
        comm.all_reduce(np.ones(1000, np.float32), reproducible=comm.rank == 1)
    return str(caught.value)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_ranks_with_other_demands_are_in_other_calls(jobs: Any, transport: str) -> None:
    for found in jobs(of_one, 2, init={"transport": transport}).results():
        assert "demand for reproducibility" in found and "the same `reproducible`" in found
