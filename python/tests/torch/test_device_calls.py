"""Calls on tensors of a device whose group has a lane: values, streams, futures, errors.

On the test device, all operations are held or late, so a missing order shows as NaN or an old
value.
"""

import ctypes
import datetime
import logging
import os
import time
from contextlib import nullcontext
from typing import Any

import pytest
import softtorch
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional

from ringfold.errors import UnsupportedError
from ringfold.torch import WaitTimeoutError

ELEMENTS = 300_000
"""Number of elements in several slices."""
FEW = 1001
DEVICE = "soft"

# Names before torch 2.13.
all_gather_single = getattr(dist, "all_gather_single", dist.all_gather_into_tensor)
reduce_scatter_single = getattr(dist, "reduce_scatter_single", dist.reduce_scatter_tensor)


def filled(value: float, count: int = FEW, dtype: torch.dtype = torch.float32) -> Any:
    return torch.full((count,), value, device=DEVICE, dtype=dtype)


def own(count: int = FEW, dtype: torch.dtype = torch.float32) -> Any:
    """Return this rank's input, which differs in every element and on every rank."""
    return (torch.arange(count, device=DEVICE) % 7 + 10 * dist.get_rank()).to(dtype)


def every(call: Any, is_async: bool) -> Any:
    """Make a call with `async_op`, and wait for its result."""
    work = call(async_op=is_async)
    assert (work is not None) == is_async
    if work is not None:
        work.wait()


def collectives(is_async: bool) -> Any:
    """Return the results of all collectives, on the host."""
    rank, count = dist.get_rank(), dist.get_world_size()
    found: dict[str, Any] = {}

    def keep(name: str, tensors: Any, call: Any) -> None:
        every(call, is_async)
        found[name] = [tensor.cpu() for tensor in tensors]

    for op in ("SUM", "AVG", "MIN", "MAX", "PRODUCT"):
        x = own(ELEMENTS if op == "SUM" else FEW)
        keep(op, [x], lambda x=x, op=op, **k: dist.all_reduce(x, getattr(dist.ReduceOp, op), **k))
    x = own(FEW, torch.int32)
    keep("truncated", [x], lambda **k: dist.all_reduce(x, dist.ReduceOp.AVG, **k))
    strided = own(2 * FEW).view(FEW, 2).t()
    keep("strided", [strided], lambda **k: dist.all_reduce(strided, **k))
    y = own()
    keep("broadcast", [y], lambda **k: dist.broadcast(y, 1, **k))
    z = own()
    keep("reduce", [z], lambda **k: dist.reduce(z, 1, **k))
    parts = [filled(-1, 1000 + each) for each in range(count)]
    keep("uneven", parts, lambda **k: dist.all_gather(parts, own(1000 + rank), **k))
    whole = filled(-1, count * ELEMENTS)
    keep("single", [whole], lambda **k: all_gather_single(whole, own(ELEMENTS), **k))
    rows = [filled(-1, FEW * 2).view(FEW, 2).t() for _ in range(count)]
    keep("rows", rows, lambda **k: dist.all_gather(rows, own(FEW * 2).view(FEW, 2).t(), **k))
    gathered = [filled(-1) for _ in range(count)] if rank == 0 else None
    keep("gather", gathered or [], lambda **k: dist.gather(own(), gathered, **k))
    target = filled(-1)
    given = list(own(FEW * count).chunk(count)) if rank == 0 else None
    keep("scatter", [target], lambda **k: dist.scatter(target, given, **k))
    out = filled(-1)
    lists = [own() + each for each in range(count)]
    keep("reduce_scatter", [out], lambda **k: dist.reduce_scatter(out, lists, **k))
    flat = filled(-1)
    keep("parts", [flat], lambda **k: reduce_scatter_single(flat, own(count * FEW), **k))
    outputs = [filled(-1, 10 * rank + each) for each in range(count)]
    inputs = [own(10 * each + rank) for each in range(count)]
    keep("all_to_all", outputs, lambda **k: dist.all_to_all(outputs, inputs, **k))
    swapped = filled(-1, 6 * FEW)
    keep("swapped", [swapped], lambda **k: dist.all_to_all_single(swapped, own(6 * FEW), **k))
    return found


def on_the_host(is_async: bool) -> Any:
    """Return the same results for host tensors."""
    global DEVICE
    DEVICE = "cpu"
    return collectives(is_async)


def test_every_collective_is_the_hosts(ranks: Any, soft: Any) -> None:
    """Results equal the host's, for lists, strided tensors, odd sizes and all operations.

    Sync calls use stream memory operations; async calls do not, so the host waits for results.
    """
    count = 3
    expected = ranks(on_the_host, count, "ringfold", is_async=False).results()
    # First with stream memory operations, then without, as with HIP.
    waits_on_host = {**soft, "SOFTCUDA_MEMOPS": "0"}
    for is_async, variables in ((False, soft), (True, waits_on_host)):
        job = ranks(collectives, count, "ringfold", variables=variables, is_async=is_async)
        found = job.results()
        for ours, theirs in zip(found, expected, strict=True):
            for name, tensors in theirs.items():
                pairs = zip(ours[name], tensors, strict=True)
                assert all(torch.equal(*pair) for pair in pairs), (name, is_async)


def joins() -> Any:
    """Make calls behind a held stream, joined by streams that are held or not."""
    main, side = torch.accelerator.current_stream(), torch.Stream(DEVICE)
    x, y, z = (filled(0, ELEMENTS) for _ in range(3))
    found: dict[str, Any] = {}
    with softtorch.held(main):
        # Queued behind the hold: the calls must wait for these additions.
        for tensor in (x, y, z):
            tensor.add_(dist.get_rank() + 1)
        dist.all_reduce(x)
        doubled = x * 2
        work = dist.all_reduce(y, async_op=True)
        third = dist.all_reduce(z, async_op=True).get_future()
        halved = third.then(lambda done: done.value()[0] / 2)
        is_early = work.is_completed()
        with pytest.raises(WaitTimeoutError, match="continues"):
            work.wait(datetime.timedelta(milliseconds=1))
        with side:
            work.wait()
            quadrupled = y * 4
    found["doubled"] = doubled.cpu()
    with side:
        found["quadrupled"] = quadrupled.cpu()
    found["halved"] = halved.wait().cpu()
    while not work.is_completed():
        time.sleep(0.0005)
    found["result"] = work.result()[0].cpu()
    return is_early, work.is_success(), work.exception(), found


def test_streams_wait_and_the_host_does_not(ranks: Any, soft: Any) -> None:
    """Sync and async calls work, as do another stream that waits, and futures with callbacks."""
    for is_early, is_success, error, found in ranks(joins, 2, "ringfold", variables=soft).results():
        assert not is_early and is_success and error is None
        expected = {"doubled": 6, "quadrupled": 12, "halved": 1.5, "result": 3}
        for name, value in expected.items():
            assert (found[name] == value).all(), name


def drops() -> Any:
    """Drop handles and tensors while the call is held, and allocate others in their memory."""
    main = torch.accelerator.current_stream()
    kept = []
    with softtorch.held(main):
        for _ in range(4):
            x = filled(1, 1000)
            kept.append(x.clone())
            # The stand-in is held only by the call.
            dist.all_reduce(kept[-1], async_op=True)
            dist.all_reduce(x.view(2, -1).t(), async_op=True)
            del x
            filled(7)
    side = dist.group.WORLD._side
    held = len(side._under_way)
    dist.all_reduce(filled(1))
    dist.barrier()
    dist.all_reduce(filled(1))
    return held, len(side._under_way), [each.cpu() for each in kept]


def test_memory_lives_as_long_as_the_device_uses_it(ranks: Any, soft: Any) -> None:
    """The memory is kept even without a handle and a tensor; a later call releases it."""
    for held, left, kept in ranks(drops, 2, "ringfold", variables=soft).results():
        assert held == 8 and left == 1
        assert all((each == 2).all() for each in kept)


def coalesces() -> Any:
    tensors = [filled(each, 100 + each) for each in range(5)]
    whole = filled(-1, 2000)
    device = torch.device(DEVICE, 0)
    with dist._coalescing_manager(device=device, async_ops=True) as manager:
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    with dist._coalescing_manager(device=device):
        all_gather_single(whole, own(1000))
    group = dist.group.WORLD
    summed = functional.all_reduce(own(1000), "sum", group) + 1
    parts = functional.all_gather_tensor(own(10), 0, group) + 1
    objects = [None, None]
    dist.all_gather_object(objects, {"rank": dist.get_rank()})
    return [tensor.cpu() for tensor in [*tensors, whole, summed, parts]], objects


def test_coalesced_and_functional_calls(ranks: Any, soft: Any) -> None:
    """Objects work, too, and stay on the host."""
    for found, objects in ranks(coalesces, 2, "ringfold", variables=soft).results():
        assert objects == [{"rank": 0}, {"rank": 1}]
        assert all((found[each] == 2 * each).all() for each in range(5))
        own = torch.arange(1000) % 7
        assert torch.equal(found[5], torch.cat([own, own + 10]).float())
        assert torch.equal(found[6], (2 * own + 11).float())
        assert torch.equal(found[7], torch.cat([own[:10] + 1, own[:10] + 11]).float())


def refuses() -> Any:
    texts = []
    calls: list[Any] = [
        lambda: dist.all_gather([torch.zeros(3), torch.zeros(3)], filled(1, 3)),
        lambda: dist.reduce_scatter(filled(1, 3), [filled(1, 3), torch.ones(3)]),
    ]
    for call in calls:
        with pytest.raises(Exception, match="same device") as caught:
            call()
        texts.append(type(caught.value).__name__)
    x = own(100)
    dist.all_reduce(x)
    return texts, x.cpu()


def test_tensors_of_two_devices_are_refused(ranks: Any, soft: Any) -> None:
    """The error is clear, and the group keeps working."""
    for texts, found in ranks(refuses, 2, "ringfold", variables=soft).results():
        assert texts == ["InvalidArgumentError"] * 2
        assert torch.equal(found, (2 * (torch.arange(100) % 7) + 10).float())


def captures() -> Any:
    main, side = torch.accelerator.current_stream(), torch.Stream(DEVICE)
    x = filled(1)
    dist.all_reduce(x)
    side.wait_stream(main)
    driver = ctypes.CDLL(os.environ["RINGFOLD_CUDA_LIBRARY"])
    handle = ctypes.c_void_p(side.native_handle)
    texts = []
    driver.softcuda_capture(handle, 1)
    with side:
        for is_async in (False, True):
            with pytest.raises(UnsupportedError) as caught:
                dist.all_reduce(x, async_op=is_async)
            texts.append(str(caught.value))
    driver.softcuda_capture(handle, 0)
    dist.all_reduce(x)
    return texts, x.cpu()


def test_a_call_while_a_graph_is_captured_is_refused(ranks: Any, soft: Any) -> None:
    """The error has a remedy, and the group keeps working."""
    for texts, found in ranks(captures, 2, "ringfold", variables=soft).results():
        for text in texts:
            assert "graph is captured" in text and "outside of the graph" in text
        assert (found == 4).all()


def loses_a_rank() -> Any:
    x, store = filled(1), dist.distributed_c10d._get_default_store()
    dist.all_reduce(x)
    if dist.get_rank() == 1:
        x.cpu()
        store.wait(["called"])
        os._exit(0)
    y = filled(1)
    work = dist.all_reduce(y, async_op=True)
    store.set("called", "")
    while not work.is_completed():
        time.sleep(0.0005)
    found = y.cpu()
    texts = []
    for call in (work.wait, lambda: dist.all_reduce(x)):
        with pytest.raises(Exception, match="rank 1") as caught:
            call()
        texts.append(type(caught.value).__name__)
    error = work.exception()
    with pytest.raises(RuntimeError, match="rank 1"):
        work.get_future().wait()
    return found, texts, type(error).__name__


def test_a_lost_rank_releases_streams(ranks: Any, soft: Any) -> None:
    """Results are NaN, and the handle and every later call raise an error that names the rank."""
    outcome = ranks(loses_a_rank, 2, "ringfold", variables=soft)
    found, texts, error = outcome.result(0)
    assert found.isnan().all()
    assert texts == ["PeerFailedError"] * 2 and error == "PeerFailedError"


def stalls() -> Any:
    messages: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    logging.getLogger("ringfold").addHandler(Handler())
    dist.all_reduce(filled(1, 3))
    # All ranks are past the first call, also in their own reports.
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    rank, x = dist.get_rank(), filled(1, 3)
    # Slow ranks may report other things before, even the first call.
    words = ["collective 3", ["waiting for rank 1", "this rank's device"][rank]]
    with softtorch.held(torch.accelerator.current_stream()) if rank else nullcontext():
        work = dist.all_reduce(x, async_op=True)
        while not (said := [each for each in messages if all(word in each for word in words)]):
            time.sleep(0.01)
        store.set(f"seen/{rank}", "")
        store.wait([f"seen/{other}" for other in range(2)])
    work.wait()
    return said[0], x.cpu()


def test_a_call_that_a_device_does_not_reach_is_reported(ranks: Any, soft: Any) -> None:
    """Both the rank itself and the rank that waits for it report the call."""
    variables = soft | {"RINGFOLD_STALL_SECONDS": "0.2"}
    (first, found), (second, _) = ranks(stalls, 2, "ringfold", variables=variables).results()
    assert "all_reduce(SUM) of torch.float32 [3], collective 3" in first
    assert "waiting for rank 1 (in no call, 1 behind)" in first
    assert "this rank's device has not reached it" in second
    assert (found == 2).all()


def waits_for_its_device() -> Any:
    store = dist.distributed_c10d._get_default_store()
    dist.all_reduce(filled(1))
    dist.barrier()
    if dist.get_rank() == 1:
        store.wait(["called"])
        os._exit(0)
    x = filled(1)
    dist.all_reduce(x, async_op=True)
    store.set("called", "")
    while True:
        # As a training loop whose calls are all enqueued.
        time.sleep(1)


def test_a_failure_ends_the_process_if_asked_to(ranks: Any, soft: Any) -> None:
    """The process ends even if it makes no more calls."""
    variables = soft | {"RINGFOLD_TORCH_ASYNC_ERRORS": "exit"}
    outcome = ranks(waits_for_its_device, 2, "ringfold", variables=variables)
    assert outcome.statuses[0] == 1, outcome.logs()
    assert "ends the process" in outcome.logs() and "rank 1" in outcome.logs()


def shares_a_group() -> Any:
    served = dist.new_group(backend="cpu:gloo,soft:ringfold")
    x, y = filled(1), torch.ones(3)
    dist.all_reduce(x, group=served)
    dist.all_reduce(y, group=served)
    refusing = dist.new_group(backend="cpu:ringfold,soft:gloo")
    dist.all_reduce(y, group=refusing)
    # Since torch 2.14, gloo gets the call, and does not support the device.
    with pytest.raises((UnsupportedError, RuntimeError), match="soft:gloo|ProcessGroupGloo"):
        dist.all_reduce(x, group=refusing)
    bound = dist.new_group(device_id=torch.device(DEVICE, 0))
    assert bound._side.lane is not None, "made at once"
    dist.all_reduce(filled(1), group=bound)
    half = dist.new_group([dist.get_rank()])
    dist.all_reduce(x, group=half)
    dist.destroy_process_group(half)
    dist.all_reduce(filled(1))
    with pytest.raises(Exception, match="soft:1"):
        dist.all_reduce(torch.ones(3, device="soft:1"))
    return x.cpu(), y


def test_groups_have_lanes_of_their_own(ranks: Any, soft: Any) -> None:
    """Groups with a backend per device have lanes, too.

    A device of another backend is refused, and so is a second device of a group.
    """
    variables = soft | {"SOFTCUDA_DEVICES": "2"}
    for x, y in ranks(shares_a_group, 2, "ringfold", variables=variables).results():
        assert (x == 2).all() and (y == 4).all()


def raises_under_way() -> Any:
    x = filled(1)
    dist.all_reduce(x, async_op=True)
    if dist.get_rank() == 1:
        raise ValueError("the loss is infinite")
    work = dist.all_reduce(x, async_op=True)
    while not work.is_completed():
        time.sleep(0.001)
    work.wait()


def test_an_error_on_one_rank_ends_the_calls_of_the_others(ranks: Any, soft: Any) -> None:
    """The calls end although the group was never destroyed."""
    outcome = ranks(raises_under_way, 2, "ringfold", variables=soft)
    assert "rank 1" in str(outcome.error(0)), outcome.logs()
