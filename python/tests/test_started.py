"""Asynchronous calls: the results, errors and memory of their handles."""

import ast
import gc
import inspect
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringfold
from ringfold import _native


@pytest.fixture
def alone() -> Any:
    with ringfold.init() as comm:
        yield comm


class Own(np.ndarray[Any, Any]):
    """A class of arrays that is not NumPy's own, so that Python code reads them."""


def start_all(comm: ringfold.Communicator) -> Any:
    """Start calls on usual arrays, and the same calls on arrays of another class."""
    found = []
    for kind in (np.ndarray, Own):
        x = (np.arange(4.0) + 10 * comm.rank).view(kind)
        total, root, blocks, block, swapped, received = (
            np.zeros(shape).view(kind) for shape in (4, 4, (2, 4), 2, 4, 4)
        )
        peer = 1 - comm.rank
        works: list[tuple[ringfold.Work, Any]] = [
            (comm.all_reduce(x, "max", out=total, async_=True), total),
            (comm.broadcast(x, 1, out=root, async_=True), root),
            (comm.all_gather(x, out=blocks, async_=True), blocks),
            (comm.reduce_scatter(x, out=block, async_=True), block),
            (comm.all_to_all(x, out=swapped, async_=True), swapped),
            (comm.send(x, peer, 7, async_=True), None),
            (comm.recv(received, peer, 7, async_=True), received),
        ]
        for work, result in reversed(works):
            assert isinstance(work, ringfold.Work)
            assert work.wait() is result and work.wait(5.0) is result and work.result() is result
            assert work.done() and work.exception() is None
            assert repr(work) == "<ringfold.Work, done>"
        assert works[-1][0].source == peer
        with pytest.raises(RuntimeError, match="only a receive that has succeeded has a source"):
            _ = works[0][0].source
        made = comm.all_reduce(x, async_=True), comm.broadcast(x, 1, async_=True)
        fresh = [work.wait() for work in made]
        assert all(type(each) is np.ndarray and each is not x for each in fresh)
        found.append([each.tolist() for each in (total, root, block, swapped, received, *fresh)])
        assert blocks.tolist() == [[0.0, 1.0, 2.0, 3.0], [10.0, 11.0, 12.0, 13.0]]
    assert found[0] == found[1]
    return found[0]


def test_started_calls_have_the_results_of_calls_that_wait(jobs: Any) -> None:
    zero, one, total = [0.0, 1.0, 2.0, 3.0], [10.0, 11.0, 12.0, 13.0], [10.0, 12.0, 14.0, 16.0]
    assert jobs(start_all, 2).results() == [
        [one, one, total[:2], [0.0, 1.0, 10.0, 11.0], one, total, one],
        [one, one, total[2:], [2.0, 3.0, 12.0, 13.0], zero, total, one],
    ]


def start_before_the_peer(comm: ringfold.Communicator) -> Any:
    if comm.rank == 1:
        comm.recv(np.empty(1), 0)
        return [float(comm.all_reduce(np.ones(2))[0]) for _ in range(2)]
    x = np.ones(2)
    alive = weakref.ref(x)
    dropped, work = comm.all_reduce(x, out=x, async_=True), comm.all_reduce(np.ones(2), async_=True)
    early = dropped.done(), work.done(), repr(work)
    with pytest.raises(TimeoutError, match=r"the call is not done after 0\.01 s; it continues"):
        work.wait(0.01)
    told = threading.Event()
    work.when_done(told.set)
    del dropped, x
    gc.collect()
    # Rank 1 has not called: the array is in use, although its handle and its name are gone.
    assert alive() is not None
    comm.send(np.ones(1), 1)
    total = float(work.wait()[0])
    assert told.wait(60)
    threads: list[Any] = []
    work.when_done(lambda: threads.append(threading.current_thread()))
    assert threads == [threading.current_thread()]
    # A later call finds the first one done, and releases its array.
    comm.send(np.ones(1), 0, async_=True)
    assert alive() is None
    return early, total


def test_a_started_call_waits_for_its_peer_and_holds_its_arrays(jobs: Any) -> None:
    early = (False, False, "<ringfold.Work, in progress>")
    assert jobs(start_before_the_peer, 2).results() == [(early, 2.0), [2.0, 2.0]]


def start_last(comm: ringfold.Communicator) -> Any:
    x = np.full(2, comm.rank + 1.0)
    if comm.rank == 0:
        works = [comm.send(x, 1, tag, async_=True) for tag in (1, 2)]
        sent = [work.done() for work in works]
        comm.broadcast(x, 0)
        comm.send(x, 1, 3)
        return sent
    comm.recv(x, 0, 3)
    # All that the calls wait for is there.
    y = np.empty(2)
    received = comm.recv(y, 0, 1, async_=True)
    done = [received.done(), comm.broadcast(x, 0, out=x, async_=True).done()]
    assert y.tolist() == x.tolist() == [1.0, 1.0] and received.source == 0
    found = comm.recv(y, None, 2, async_=True)
    return [*done, found.done() and found.wait() == (y, 0)]


def test_a_small_call_that_needs_no_wait_is_done_when_it_is_started(jobs: Any) -> None:
    assert jobs(start_last, 2, {"transport": "shm"}).results() == [[True] * 2, [True] * 3]


def start_and_drop(comm: ringfold.Communicator) -> Any:
    """Start small calls in all ways, and use few of their handles."""
    x, other = np.full(3, comm.rank + 1.0), np.zeros(3).view(Own)
    for index in range(500):
        comm.all_reduce(x, "max", out=x, async_=True)
        work = comm.all_reduce(x, "min", out=other, async_=True)
        comm.broadcast(np.full(3, float(index)), index % 2, async_=True)
        if index % 7 == 0:
            work.wait()
        if index % 11 == 0:
            assert comm.all_reduce(np.ones(20_000))[-1] == 2
    comm.barrier()
    return x.tolist(), other.tolist()


def test_calls_run_in_the_order_in_which_they_were_started(jobs: Any) -> None:
    assert jobs(start_and_drop, 2).results() == [([2.0] * 3, [2.0] * 3)] * 2


def start_then_end(comm: ringfold.Communicator) -> Any:
    errors = []
    for count in (1, 100_000):
        part = comm.split(0)
        assert part is not None
        x = np.ones(count)
        if comm.rank == 1:
            comm.recv(np.empty(1), 0)
            part.abort("enough")
            continue
        started = [part.all_reduce(x, out=x, async_=True), part.recv(np.empty(2), 1, async_=True)]
        comm.send(np.ones(1), 1)
        for work in started:
            error = work.exception()
            assert isinstance(error, ringfold.AbortedError) and work.done()
            for use in (work.wait, work.result, lambda: work.wait(1.0)):  # noqa: B023
                with pytest.raises(ringfold.AbortedError, match="enough"):
                    use()
            with pytest.raises(RuntimeError, match="only a receive that has succeeded"):
                _ = work.source
            told: list[int] = []
            work.when_done(lambda: told.append(1))  # noqa: B023
            assert told == [1]
        # A call that is started afterwards has the error in its handle, too.
        with pytest.raises(ringfold.AbortedError, match="enough"):
            part.all_reduce(x, async_=True).wait()
        errors.append(str(error))
    return len(errors)


def test_the_handle_has_the_error_of_a_call_that_was_started(jobs: Any) -> None:
    assert jobs(start_then_end, 2).results() == [2, 0]


def keep_the_handle(comm: ringfold.Communicator) -> Any:
    part = comm.split(0)
    assert part is not None
    works = [part.all_reduce(np.ones(count), async_=True) for count in (1, 100_000)]
    alive = weakref.ref(part._native)
    del part
    gc.collect()
    assert alive() is not None
    sums = [float(work.wait()[0]) for work in works]
    del works
    gc.collect()
    return sums, alive() is None


def test_a_communicator_stays_open_as_long_as_a_handle_exists(jobs: Any) -> None:
    assert jobs(keep_the_handle, 2).results() == [([2.0, 2.0], True)] * 2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda comm, x: comm.all_reduce(x, out=np.empty(3), async_=True), "the result has 2"),
        (lambda comm, x: comm.all_reduce(x, "plus", async_=True), "plus"),
        (lambda comm, x: comm.broadcast(x, 1, out=x, async_=True), "invalid root 1"),
        (lambda comm, x: comm.all_gather(x, out=np.empty(3), async_=True), "the result has 2"),
        (lambda comm, x: comm.reduce_scatter(np.ones(()), async_=True), "without axes"),
        (lambda comm, x: comm.all_to_all(x, out=np.empty(2, "f4"), async_=True), "float32"),
        (lambda comm, x: comm.send(x, 1, async_=True), "invalid peer 1"),
        (lambda comm, x: comm.send(x, 0, -1, async_=True), "tags are 0 to"),
        (lambda comm, x: comm.recv(np.frombuffer(bytes(8)), 0, async_=True), "read-only"),
        (lambda comm, x: comm.all_reduce(x, async_=True, timeout=-1.0), "invalid timeout"),
        (lambda comm, x: comm.all_reduce(x, async_=True).wait(-1.0), "invalid timeout"),
    ],
)
def test_a_wrong_call_is_refused_and_not_started(
    alone: ringfold.Communicator,
    call: Callable[[ringfold.Communicator, Any], Any],
    message: str,
) -> None:
    with pytest.raises(ringfold.InvalidArgumentError, match=message):
        call(alone, np.ones(2))
    assert alone.all_reduce(np.ones(2), async_=True).wait().tolist() == [1.0, 1.0]


def test_an_array_that_refers_to_its_handle_is_collected(alone: ringfold.Communicator) -> None:
    x: Any = np.ones(2).view(Own)
    x.work = alone.all_reduce(x, out=x, async_=True)
    assert x.work.wait() is x
    alive = weakref.ref(x)
    del x
    gc.collect()
    assert alive() is None


def test_a_handle_of_a_parents_call_is_refused_in_a_child(alone: ringfold.Communicator) -> None:
    work = alone.all_reduce(np.ones(2), async_=True)
    child = os.fork()
    if child == 0:
        uses: list[Callable[[], Any]] = [
            work.wait, work.done, work.result, work.exception, lambda: work.source,
            lambda: work.when_done(print), lambda: repr(work),
        ]  # fmt: skip
        refused = 0
        for use in uses:
            try:
                use()
            except ringfold.UnsupportedError as error:
                refused += "which forked this one" in str(error)
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert work.wait().tolist() == [1.0, 1.0]


def test_a_handle_is_made_by_calls_alone(alone: ringfold.Communicator) -> None:
    made: Any = ringfold.Work
    with pytest.raises(TypeError):
        made()
    assert made.__module__ == "ringfold"


def test_the_documentation_of_the_handle_is_that_of_the_stubs() -> None:
    stubs = ast.parse(Path(_native.__file__).with_name("_native.pyi").read_text())
    (described,) = (
        node for node in stubs.body if isinstance(node, ast.ClassDef) and node.name == "Work"
    )
    assert ast.get_docstring(described) == inspect.getdoc(ringfold.Work)
    methods = [node for node in described.body if isinstance(node, ast.FunctionDef)]
    public = {name for name in vars(ringfold.Work) if not name.startswith("_")}
    assert {method.name for method in methods} == public
    for method in methods:
        assert ast.get_docstring(method) == inspect.getdoc(getattr(ringfold.Work, method.name))
