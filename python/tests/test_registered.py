"""Arrays in registered memory: ordinary arrays, freed with their last reference."""

import gc
import os
from typing import Any

import numpy as np
import pytest

import ringfold


def mappings() -> int:
    """Return the number of registered buffers mapped here, of this process and its peers."""
    with open("/proc/self/maps") as maps:
        return sum("memfd:ringfold registered" in line for line in maps)


def use_empty(comm: ringfold.Communicator, shared: bool) -> Any:
    x = comm.empty((comm.rank + 2, 50000), "float64")
    assert x.shape == (comm.rank + 2, 50000) and x.dtype == np.float64 and not x.any()
    assert (mappings() > 0) == shared
    x[:] = comm.rank + 1
    total = comm.all_reduce(x[1], out=x[0])
    assert np.shares_memory(total, x)
    integers = comm.empty(1000, np.int32)
    integers[:] = comm.rank
    gathered = comm.all_gather(integers)
    last = x[-1]
    del x
    gc.collect()
    # A view keeps the memory alive.
    assert (last == comm.rank + 1).all()
    assert comm.empty(0).shape == (0,)
    return float(total.sum()), gathered[:, 7].tolist()


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_an_array_of_empty_is_an_array_like_any_other(jobs: Any, transport: str) -> None:
    job = jobs(use_empty, 3, init={"transport": transport}, shared=transport == "shm")
    assert job.results() == [(50000 * 6.0, [0, 1, 2])] * 3


def test_empty_takes_numbers_only() -> None:
    with ringfold.init() as comm:
        with pytest.raises(ringfold.InvalidArgumentError, match="Python objects"):
            comm.empty(3, object)
        with pytest.raises(ringfold.InvalidArgumentError, match="0 or more"):
            comm.empty((2, -1))
        with pytest.raises(ringfold.RingfoldSystemError, match="request less"):
            comm.empty(1 << 58)


def let_go(comm: ringfold.Communicator) -> Any:
    x = comm.empty(1 << 20)
    x[:] = 1
    held = mappings()
    del x
    gc.collect()
    comm.barrier()
    y = comm.empty(1 << 20)
    again = mappings()
    comm.all_reduce(y, out=y)
    assert not y.any()
    comm.close()
    y[:] = 7
    assert (y == 7).all()
    del y
    gc.collect()
    return held, again, mappings()


def test_memory_goes_with_its_last_array(jobs: Any) -> None:
    # While held: this rank's own mapping and the peer's.
    assert jobs(let_go, 2).results() == [(2, 2, 0)] * 2


def use_register(comm: ringfold.Communicator) -> Any:
    x = np.arange(300000, dtype="float32")
    with comm.register(x) as array:
        assert array is x
        comm.all_reduce(x, out=x)
        # The pages in the middle are shared with the peers.
        page = x[2048:102400]
        comm.all_reduce(page, out=page)
        with pytest.raises(ringfold.InvalidArgumentError, match="registered already"):
            comm.register(x)
    expected = np.arange(300000, dtype="float32") * 2
    expected[2048:102400] *= 2
    assert (x == expected).all()
    registration = comm.register(x)
    assert not registration.closed and registration.shared
    registration.close()
    registration.close()
    assert registration.closed
    return comm.all_reduce(x)[1].item()


def test_an_array_that_exists_can_be_registered_for_a_while(jobs: Any) -> None:
    assert jobs(use_register, 2).results() == [4.0] * 2


def resize(comm: ringfold.Communicator) -> None:
    array = np.zeros(100000)
    growing = bytearray(100000)
    with comm.register(array), comm.register(growing):
        with pytest.raises((ValueError, BufferError)):
            array.resize(200000)
        with pytest.raises(BufferError):
            growing.extend(bytes(100000))
    array.resize(200000, refcheck=False)
    growing.extend(bytes(100000))


def test_what_is_registered_cannot_be_resized(jobs: Any) -> None:
    jobs(resize, 2).results()


def close_while_calls_run(comm: ringfold.Communicator) -> Any:
    x = np.full(1 << 20, comm.rank + 1.0)
    registration = comm.register(x)
    calls = [comm.all_reduce(x, out=x, async_=True) for _ in range(3)]
    registration.close()
    assert all(call.done() for call in calls)
    return x[0].item(), x[-1].item()


def test_the_end_of_a_registration_waits_for_calls_under_way(jobs: Any) -> None:
    # 1 + 2, then doubled twice.
    assert jobs(close_while_calls_run, 2).results() == [(12.0, 12.0)] * 2


def fork(comm: ringfold.Communicator) -> Any:
    x = comm.empty(1 << 16)
    x[:] = 3
    endings = []
    for touch in [True, False]:
        child = os.fork()
        if child == 0:
            found = 5
            if touch:
                found = int(x.sum()) >> 16
                x[:] = 7
            del x
            gc.collect()
            os._exit(found)
        endings.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    return endings, comm.all_reduce(x)[0].item()


def test_a_forked_child_reads_the_memory_and_writes_to_its_own(jobs: Any) -> None:
    assert jobs(fork, 2).results() == [([3, 5], 6.0)] * 2
