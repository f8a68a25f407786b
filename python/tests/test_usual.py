"""Calls on usual arrays, which no Python code handles, beside those on all others: both have the
same results and the same errors.
"""

import threading
from typing import Any

import numpy as np
import pytest

import ringfold


@pytest.fixture
def alone() -> Any:
    with ringfold.init() as comm:
        yield comm


class Own(np.ndarray[Any, Any]):
    """A class of arrays that is not NumPy's own."""


def inputs() -> list[Any]:
    """Return arrays with the same elements, usual and others."""
    x: Any = np.arange(6, dtype=np.float32).reshape(2, 3)
    turned = np.ascontiguousarray(x.T).T
    misaligned = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(2, 3)
    read_only = x.copy()
    read_only.flags.writeable = False
    return [x, turned, misaligned, read_only, x.view(Own), memoryview(x)]


def sum_all(comm: ringfold.Communicator) -> Any:
    found = []
    for given in inputs():
        out = np.empty((2, 3), np.float32)
        result = comm.all_reduce(given, out=out)
        assert result is out
        made = comm.all_reduce(given)
        assert type(made) is np.ndarray and made is not given and made.tolist() == out.tolist()
        assert np.asarray(given).tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
        found.append(out.tolist())
    x = np.ones((), np.int64)
    assert comm.all_reduce(x, "max", out=x) is x and comm.all_reduce(np.empty((0, 3))).size == 0
    assert comm.all_reduce(x, "prod").shape == ()
    with comm.group():
        works = [comm.all_reduce(x, out=x), comm.all_reduce(np.array(5))]
    assert [int(work.wait()) for work in works] == [2, 10]
    assert comm.all_reduce(x, out=x, async_=True).wait() is x
    assert comm.all_reduce(x, out=x, timeout=20.0) is x and int(x) == 8
    return found


def test_usual_arrays_and_others_have_the_same_sums(jobs: Any) -> None:
    twice = [[0.0, 2.0, 4.0], [6.0, 8.0, 10.0]]
    assert jobs(sum_all, 2).results() == [[twice] * 6] * 2


def other_calls(comm: ringfold.Communicator) -> Any:
    """Make calls on usual arrays, and the same calls on arrays of another class."""
    found = []
    for kind in (np.ndarray, Own):
        x = (np.arange(4.0) + 10 * comm.rank).view(kind)
        root, blocks, block, swapped, sent = (
            np.zeros(shape).view(kind) for shape in (4, (2, 4), 2, 4, 4)
        )
        root[:] = x
        assert comm.broadcast(root, 1, out=root) is root
        assert comm.all_gather(x, out=blocks) is blocks
        assert comm.reduce_scatter(x, "max", out=block) is block
        assert comm.all_to_all(x, out=swapped) is swapped
        if comm.rank == 0:
            assert comm.send(x, 1, 7) is None
        assert comm.recv(sent, 1 - comm.rank, tag=7) is sent
        if comm.rank == 1:
            assert comm.send(sent + 1, 0, 7) is None
        fresh = comm.broadcast(x, 1)
        assert fresh is not x and type(fresh) is np.ndarray
        found.append([each.tolist() for each in (root, blocks, block, swapped, sent, fresh)])
    assert found[0] == found[1]
    return found[0]


def test_usual_arrays_and_others_have_the_same_results(jobs: Any) -> None:
    zero, one = [0.0, 1.0, 2.0, 3.0], [10.0, 11.0, 12.0, 13.0]
    of_zero, of_one = jobs(other_calls, 2).results()
    assert of_zero[:2] == of_one[:2] == [one, [zero, one]]
    assert (of_zero[2], of_one[2]) == ([10.0, 11.0], [12.0, 13.0])
    assert (of_zero[3], of_one[3]) == ([0.0, 1.0, 10.0, 11.0], [2.0, 3.0, 12.0, 13.0])
    assert (of_zero[4], of_one[4]) == ([1.0, 2.0, 3.0, 4.0], zero)
    assert of_zero[5] == of_one[5] == one


def test_calls_that_do_not_fit_are_refused(alone: ringfold.Communicator) -> None:
    x, bad = np.ones(2), np.empty(3)
    refused: list[tuple[Any, str]] = [
        (lambda: alone.broadcast(x, out=bad), "`out` has 3 elements of float64; the result has 2"),
        (lambda: alone.broadcast(x, 1, out=x), "invalid root 1 in a communicator of 1 ranks"),
        (lambda: alone.broadcast(x, -1, out=x), "ranks count from 0"),
        (lambda: alone.all_gather(x, out=bad), "the result has 2 of float64, shape"),
        (lambda: alone.reduce_scatter(np.ones(()), out=bad), "an array without axes"),
        (lambda: alone.all_to_all(x, out=np.empty(2, "f4")), "`out` has 2 elements of float32"),
        (lambda: alone.send(x, 1), "invalid peer 1 in a communicator of 1 ranks"),
        (lambda: alone.send(x, 0, -1), "tags are 0 to"),
        (lambda: alone.broadcast(x, None, out=x), "without a rank"),  # type: ignore[arg-type]
        (lambda: alone.recv(np.frombuffer(bytes(8)), 0), "the output is read-only"),
    ]
    for call, message in refused:
        with pytest.raises(ringfold.InvalidArgumentError, match=message):
            call()


@pytest.mark.parametrize(
    ("out", "message"),
    [
        (np.empty(3, np.float64), "`out` has 3 elements of float64; the result has 2 of float64"),
        (np.empty(2, np.float32), "`out` has 2 elements of float32; the result has 2 of float64"),
        (np.empty(4)[::2], "is not C-contiguous"),
        (np.frombuffer(bytes(16)), "the output is read-only"),
        (np.empty(2, ">f8"), "no data type for buffer format"),
    ],
)
def test_an_output_that_does_not_fit_is_refused(
    alone: ringfold.Communicator, out: Any, message: str
) -> None:
    with pytest.raises(ringfold.RingfoldError, match=message):
        alone.all_reduce(np.ones(2), out=out)


def test_an_operation_that_does_not_exist_is_refused(alone: ringfold.Communicator) -> None:
    x = np.ones(2)
    op: Any
    for op in ("plus", "premul_sum", None, 3):
        with pytest.raises((ringfold.InvalidArgumentError, TypeError)):
            alone.all_reduce(x, op)
    with pytest.raises(ringfold.InvalidArgumentError, match="overlap"):
        memory = np.ones(3)
        alone.all_reduce(memory[:2], out=memory[1:])


def wait_for_a_late_rank(comm: ringfold.Communicator) -> Any:
    x = np.ones(2)
    if comm.rank == 1:
        comm.recv(np.empty(1), 0)
        return comm.all_reduce(x).tolist()
    # Without this thread's message, rank 1 does not call.
    begun = threading.Event()

    def send() -> None:
        begun.wait()
        comm.send(np.ones(1), 1)

    other = threading.Thread(target=send)
    other.start()
    begun.set()
    result = comm.all_reduce(x).tolist()
    other.join()
    return result


def test_threads_run_while_a_call_waits_for_a_late_rank(jobs: Any) -> None:
    assert jobs(wait_for_a_late_rank, 2).results() == [[2.0, 2.0]] * 2
