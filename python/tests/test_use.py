"""Use of a communicator: asynchronous calls, arguments, closing."""

import gc
import os
import queue
import subprocess
import sys
import threading
import time
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ringfold
from ringfold import arrays
from ringfold._native import Request


@pytest.fixture
def alone() -> Any:
    with ringfold.init() as comm:
        yield comm


def test_root_and_operation_of_reduce_stand_in_either_order(alone: ringfold.Communicator) -> None:
    x = np.ones(3)
    half: Any = ringfold.premul_sum(0.5)
    for found in (
        alone.reduce(x, half, 0),
        alone.reduce(x, np.int64(0), half),
        alone.reduce(x, half, root=0),
        alone.reduce(x, 0, op=half),
        alone.reduce(x, op=half),
    ):
        assert found.tolist() == [0.5] * 3
    assert alone.reduce(x, root=0).tolist() == alone.reduce(x).tolist() == [1.0] * 3
    for twice in (("sum", "max"), (0, 0)):
        with pytest.raises(ringfold.InvalidArgumentError, match="pass at most one of each"):
            alone.reduce(x, *twice)
    with pytest.raises(ringfold.InvalidArgumentError):
        alone.reduce(x, "sum", op="max")


def many_at_once(comm: ringfold.Communicator) -> Any:
    xs = [np.full(997, 10 * index + comm.rank, "int64") for index in range(20)]
    started = [comm.all_reduce(x, out=x, async_=True) for x in xs]
    # Waits are in reverse order: the handles are independent.
    for index in reversed(range(20)):
        assert started[index].wait() is xs[index]
        assert started[index].done() and started[index].exception() is None
    return [int(x[0]) for x in xs], [int(x[-1]) for x in xs]


def test_started_calls_are_carried_out_in_order_and_waited_for_in_any(jobs: Any) -> None:
    expected = [3 * 10 * index + 3 for index in range(20)]
    assert jobs(many_at_once, 3).results() == [(expected, expected)] * 3


def wait_a_little(comm: ringfold.Communicator) -> Any:
    x = np.ones(5)
    if comm.rank == 0:
        started = comm.all_reduce(x, async_=True)
        with pytest.raises(TimeoutError) as caught:
            started.wait(0.05)
        assert not isinstance(caught.value, ringfold.RingfoldError)
        assert not started.done()
        comm.send(x, 1)
        return started.result().tolist()
    comm.recv(np.empty(5), 0)
    return comm.all_reduce(x).tolist()


def test_a_wait_that_was_too_short_can_be_repeated(jobs: Any) -> None:
    assert jobs(wait_a_little, 2).results() == [[2.0] * 5] * 2


def forget(comm: ringfold.Communicator) -> Any:
    if comm.rank == 0:
        x = np.arange(100000.0)
        alive = weakref.ref(x)
        comm.send(x, 1, async_=True)
        del x
        gc.collect()
        kept = alive() is not None
        comm.send(np.zeros(1), 1)
        comm.barrier()
        # The next call releases completed calls.
        comm.barrier()
        gc.collect()
        return kept, alive() is None
    out = np.empty(100000)
    comm.recv(out, 0)
    comm.recv(np.empty(1), 0)
    comm.barrier()
    comm.barrier()
    return bool((out == np.arange(100000.0)).all())


def test_buffers_of_a_forgotten_call_live_until_it_is_done(jobs: Any) -> None:
    # The buffer may be sent before rank 0 drops it. The received data shows that the buffer was not
    # freed too early.
    (_, freed), right = jobs(forget, 2).results()
    assert freed and right


def count_meanwhile(comm: ringfold.Communicator) -> Any:
    if comm.rank == 1:
        counted = 0
        arrived = threading.Event()

        def wait() -> None:
            comm.recv(np.empty(1), 0)
            arrived.set()

        waiting = threading.Thread(target=wait)
        waiting.start()
        # Rank 0 sends only after this rank has counted. A wait that held the GIL would never end.
        while counted < 1000:
            counted += 1
        comm.send(np.array([counted]), 0, tag=9)
        waiting.join()
        return counted, arrived.is_set()
    heard = int(comm.recv(np.zeros(1, "int64"), 1, tag=9)[0])
    comm.send(np.ones(1), 1)
    return heard


def test_other_threads_run_while_one_waits(jobs: Any) -> None:
    heard, (counted, arrived) = jobs(count_meanwhile, 2).results()
    assert heard == counted == 1000 and arrived


def exit_without_close(comm: ringfold.Communicator) -> Any:
    comm.barrier()
    comm.all_reduce(np.ones(3), async_=True)
    # Dropped with a call in progress: interpreter exit handles both.
    raise SystemExit(0)


def test_leaving_without_close_is_an_orderly_goodbye(jobs: Any) -> None:
    job = jobs(exit_without_close, 3)
    assert [job.status(rank) for rank in range(3)] == [0, 0, 0]


def test_a_job_of_one_gives_back_what_it_gets(alone: ringfold.Communicator) -> None:
    x = np.arange(6.0).reshape(2, 3)
    assert (alone.rank, alone.world_size, alone.local_rank, alone.local_size, alone.hosts) == (
        0,
        1,
        0,
        1,
        1,
    )
    assert np.array_equal(alone.all_reduce(x, "avg"), x)
    assert np.array_equal(alone.all_reduce(x, "mean"), x)
    assert alone.all_gather(x).shape == (1, 2, 3)
    assert repr(alone) == "<ringfold.Communicator, rank 0 of 1>"


def test_a_result_is_of_the_kind_of_its_input(alone: ringfold.Communicator) -> None:
    assert isinstance(alone.all_reduce(bytearray(b"ab")), np.ndarray)
    own = bytearray(b"ab")
    assert alone.all_reduce(own, out=own) is own

    class Array:
        """An array of another framework that follows the array API standard."""

        def __init__(self, memory: Any) -> None:
            self.memory = memory
            self.dtype = memory.dtype

        def __array_namespace__(self) -> Any:
            return Array

        @staticmethod
        def from_dlpack(memory: Any) -> "Array":
            # JAX does the same. NumPy cannot export the types of ml_dtypes.
            memory.__dlpack__()
            return Array(memory)

        @staticmethod
        def asarray(memory: Any) -> "Array":
            return Array(memory)

        def __dlpack_device__(self) -> Any:
            return self.memory.__dlpack_device__()

        def __dlpack__(self, **arguments: Any) -> Any:
            return self.memory.__dlpack__(**arguments)

    result = alone.all_reduce(Array(np.arange(3)))
    assert isinstance(result, Array) and result.memory.tolist() == [0, 1, 2]
    half = np.arange(3).astype(ml_dtypes.bfloat16)
    result = arrays.restored(Array(half), half)
    assert isinstance(result, Array) and result.memory is half


@pytest.mark.deep
def test_arrays_of_jax_come_in_and_out(alone: ringfold.Communicator) -> None:
    jax = pytest.importorskip("jax", reason="jax is not installed")
    for dtype in ("bfloat16", "float16", "float32"):
        x = jax.numpy.arange(4, dtype=dtype)
        result = alone.all_reduce(x)
        assert (
            isinstance(result, jax.Array)
            and result.dtype == x.dtype
            and result.tolist() == [0, 1, 2, 3]
        )


@pytest.mark.parametrize(
    "call",
    [
        lambda comm: comm.all_reduce(np.ones(3), "median"),
        lambda comm: comm.all_reduce(np.ones(3), "premul_sum"),
        lambda comm: comm.all_reduce(np.ones(3), "band"),
        lambda comm: comm.all_reduce(np.ones(3), out=np.ones(2)),
        lambda comm: comm.all_reduce(np.ones(3), out=np.ones(3, "float32")),
        lambda comm: comm.all_reduce(np.ones(3), timeout=-1),
        lambda comm: comm.all_reduce(np.ones(3), timeout=float("nan")),
        lambda comm: comm.all_reduce(np.ones(3), algorithm="magic"),
        lambda comm: comm.broadcast(np.ones(3), 7),
        lambda comm: comm.all_gather(np.ones(3), counts=[4]),
        lambda comm: comm.all_gather(np.ones(3), counts=[]),
        lambda comm: comm.all_gather(np.ones(3), counts=[3, 0]),
        lambda comm: comm.reduce_scatter(np.float64(1.0)),
        lambda comm: comm.all_to_all(np.ones(3), send_counts=[3]),
        lambda comm: comm.all_to_all(np.ones(3), send_counts=[3], recv_counts=[1]),
        lambda comm: comm.all_to_all(np.ones(3), send_counts=[3], recv_counts=[-3]),
        lambda comm: comm.send(np.ones(3), -1),
        lambda comm: comm.recv(np.ones(3), -1),
        lambda comm: comm.broadcast(np.ones(3), -1),
        lambda comm: comm.send(np.ones(3), 0, tag=-1),
        lambda comm: comm.send(np.ones(3), 0, tag=1 << 32),
        lambda comm: ringfold.init(transport="pigeons"),
    ],
)
def test_wrong_arguments_are_refused_and_leave_the_communicator_usable(
    alone: ringfold.Communicator, call: Any
) -> None:
    with pytest.raises(ringfold.InvalidArgumentError):
        call(alone)
    alone.barrier()


def test_a_closed_communicator_says_so() -> None:
    comm = ringfold.init()
    comm.close()
    comm.close()
    with pytest.raises(ringfold.ClosedError):
        comm.all_reduce(np.ones(1))
    with pytest.raises(ringfold.ClosedError):
        comm.split(0)


def test_importing_ringfold_imports_no_framework() -> None:
    program = (
        "import sys, ringfold; sys.exit(bool({'numpy', 'torch', 'ml_dtypes'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_torch_tensors_come_in_and_out() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with ringfold.init() as comm:
        for dtype in (torch.float32, torch.bfloat16, torch.int8, torch.bool, torch.float8_e4m3fn):
            x = torch.arange(6).reshape(2, 3).to(dtype)
            result = comm.all_gather(x.T)
            assert result.dtype == dtype and result.shape == (1, 3, 2)
            assert result[0].float().equal(x.T.float())
        x = torch.arange(6.0)
        assert comm.all_reduce(x, out=x) is x
        with pytest.raises(ringfold.InvalidArgumentError, match="contiguous"):
            comm.all_reduce(x[::2], out=x[::2])
        with pytest.raises(ringfold.UnsupportedError, match="device"):
            comm.all_reduce(torch.empty(3, device="meta"))


def end_and_tell(comm: ringfold.Communicator) -> Any:
    native, told = comm._native, queue.SimpleQueue[Any]()
    x = np.ones(1000)
    memory = (x.ctypes.data, x.nbytes)
    if comm.rank == 1:
        comm.recv(np.empty(1), 0)
        comm.all_reduce(x)
        comm.all_reduce(x)
        return None
    work = native.start(Request.raw("all_reduce", "float64", 1000, memory, memory, owner=x))
    call = lambda: told.put(threading.current_thread())  # noqa: E731
    alive = weakref.ref(call)
    work.when_done(call)
    del call
    early = told.empty()
    comm.send(np.empty(1), 1)
    elsewhere = told.get(timeout=30) is not threading.main_thread()
    # A callback added after completion runs at once, in its caller's thread.
    work.when_done(lambda: told.put(threading.current_thread()))
    here = told.get_nowait() is threading.main_thread()
    raised: list[Any] = []
    sys.unraisablehook = raised.append
    again = native.start(Request.raw("all_reduce", "float64", 1000, memory, memory, owner=x))
    # Exceptions of callbacks go to the hook, whether the callback runs at once or later.
    again.when_done(lambda: 1 // 0)
    again.wait()
    again.when_done(lambda: told.put(0))
    told.get(timeout=30)
    while not raised:
        time.sleep(0.001)
    return early, elsewhere, here, alive() is None, raised[0].exc_type is ZeroDivisionError


def test_who_asks_is_told_when_a_call_is_done(jobs: Any) -> None:
    assert jobs(end_and_tell, 2).results() == [(True,) * 5, None]


def tell_at_the_end(comm: ringfold.Communicator) -> Any:
    comm.barrier()
    x = np.ones(3)
    memory = (x.ctypes.data, x.nbytes)
    work = comm._native.start(
        Request.raw("recv", "float64", 3, (0, 0), memory, root=1 - comm.rank, owner=x)
    )
    work.when_done(lambda: time.sleep(0.05))
    comm.abort("enough")
    # The notifier runs Python code, or is about to, when the interpreter exits.
    raise SystemExit(0)


def test_the_end_of_the_interpreter_waits_for_nobody_who_is_told(jobs: Any) -> None:
    job = jobs(tell_at_the_end, 2)
    assert [job.status(rank) for rank in range(2)] == [0, 0]


def fork_and_ask(comm: ringfold.Communicator) -> Any:
    def is_told(communicator: ringfold.Communicator) -> bool:
        told, x = threading.Event(), np.ones(3)
        memory = (x.ctypes.data, x.nbytes)
        request = Request.raw("all_reduce", "float64", 3, memory, memory, owner=x)
        works = [communicator._native.start(request) for _ in range(100)]
        for work in works:
            work.when_done(told.set)
        return told.wait(30)

    here = is_told(comm)
    child = os.fork()
    if child == 0:
        # The child has no thread of its parent, and starts its own.
        alone = ringfold.init(rank=0, world_size=1)
        os._exit(0 if is_told(alone) else 1)
    return here, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_is_told_by_a_thread_of_its_own(jobs: Any) -> None:
    assert jobs(fork_and_ask, 2).results() == [(True, 0)] * 2


def reduce_by_address(comm: ringfold.Communicator) -> Any:
    x, y = np.full(5, comm.rank + 1.0, "float32"), np.zeros(5, "float32")
    places = (x.ctypes.data, x.nbytes), (y.ctypes.data, y.nbytes)
    comm._native.run(
        Request.raw("all_reduce", "float32", 5, *places, op="premul_sum", factor=2.0, owner=(x, y))
    )
    comm._native.run(Request.raw("barrier", "uint8", 0, (0, 0), (0, 0), timeout=20.0))
    counts = [index + 1 for index in range(comm.world_size)]
    all_of_them = np.zeros(sum(counts), "float32")
    gathered = (all_of_them.ctypes.data, all_of_them.nbytes)
    own = (x.ctypes.data, 4 * counts[comm.rank])
    comm._native.run(
        Request.raw("all_gather", "float32", counts, own, gathered, owner=(x, all_of_them))
    )
    return y.tolist(), all_of_them.tolist()


def test_calls_are_made_by_address(jobs: Any) -> None:
    assert (
        jobs(reduce_by_address, 3).results() == [([12.0] * 5, [1.0, 2.0, 2.0, 3.0, 3.0, 3.0])] * 3
    )


class Owner:
    """Owner of a buffer, which keeps the buffer's memory alive."""


def test_an_owner_is_held_until_the_call_is_done(alone: ringfold.Communicator) -> None:
    x, owner = np.ones(3), Owner()
    alive = weakref.ref(owner)
    memory = (x.ctypes.data, x.nbytes)
    work = alone._native.start(Request.raw("all_reduce", "float64", 3, memory, memory, owner=owner))
    del owner
    work.wait()
    assert alive() is None


@pytest.mark.parametrize(
    ("collective", "dtype", "place", "problem"),
    [
        ("all_reduce", "float32", (0, 12), "null"),
        ("all_reduce", "float32", (4098, 12), "not aligned"),
        ("all_reduce", "complex64", (4096, 24), "complex64"),
        ("reduce_all", "float32", (4096, 12), "reduce_all"),
        ("all_reduce", "float32", (4096, 8), "needs 12 bytes"),
    ],
)
def test_what_is_wrong_with_a_call_by_address_is_said(
    alone: ringfold.Communicator, collective: str, dtype: str, place: tuple[int, int], problem: str
) -> None:
    with pytest.raises((ringfold.InvalidArgumentError, ringfold.UnsupportedError), match=problem):
        alone._native.run(Request.raw(collective, dtype, 3, place, place))


def pass_messages(comm: ringfold.Communicator) -> Any:
    if comm.rank > 0:
        comm.barrier()
        for tag in (1, 2, 3):
            comm.send(np.full(50, 10 * comm.rank + tag), 0, tag)
        return None
    late = [np.zeros(50, "int64") for _ in range(2)]
    started = [comm.recv(x, None, 3, async_=True) for x in late]
    with pytest.raises(RuntimeError, match="succeeded"):
        _ = started[0].source
    comm.barrier()
    sources = []
    for x, work in zip(late, started, strict=True):
        filled, source = work.wait()
        assert filled is x and work.source == source
        assert (x == 10 * source + 3).all()
        sources.append(source)
    x = np.zeros(50, "int64")
    for source in (2, 1):
        for tag in (2, 1):
            assert comm.recv(x, source, tag) is x and (x == 10 * source + tag).all()
    return sorted(sources)


def take_turns(comm: ringfold.Communicator) -> Any:
    if comm.rank > 0:
        comm.send(np.array([comm.rank]), 0)
        return None
    x = np.zeros(1, "int64")
    heard = [comm.recv(x, None) for _ in range(comm.world_size - 1)]
    assert all(filled is x for filled, _ in heard)
    return sorted(source for _, source in heard)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_messages_are_matched_by_tag_and_source(jobs: Any, transport: str) -> None:
    assert jobs(pass_messages, 3, {"transport": transport}).results()[0] == [1, 2]
    assert jobs(take_turns, 4, {"transport": transport}).results()[0] == [1, 2, 3]


def ask_for_another(comm: ringfold.Communicator) -> Any:
    big = np.zeros(1 << 20)
    try:
        comm.send(big, 1, 4) if comm.rank == 0 else comm.recv(big[1:], None, 4)
    except ringfold.MismatchError as error:
        return str(error)


def test_a_message_of_another_count_is_a_mismatch(jobs: Any) -> None:
    for text in jobs(ask_for_another, 2).results():
        assert "recv of 1048575 float64 tag 4" in text and "send of 1048576 float64 tag 4" in text


def test_only_a_receive_does_without_a_rank(alone: ringfold.Communicator) -> None:
    with pytest.raises(ringfold.InvalidArgumentError, match="only `recv`"):
        alone.send(np.zeros(1), None)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="source"):
        _ = alone.barrier(async_=True).source
