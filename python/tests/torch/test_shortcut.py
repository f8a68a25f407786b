"""The shorter way into `torch.distributed.all_reduce`: what observes a call still sees it, and
calls of another form go the long way.
"""

import pickle
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

import ringfold
import ringfold.torch
from ringfold._native import AllReduceShortcut
from ringfold.torch.backend import RingfoldProcessGroup
from ringfold.torch.work import WaitTimeoutError


def inner() -> Any:
    """Return the function that torch's `all_reduce` calls."""
    (cell,) = dist.all_reduce.__closure__
    return cell.cell_contents


def sum_in_all_forms() -> list[list[float]]:
    group = dist.group.WORLD
    rank = dist.get_rank()
    forms: list[Any] = [
        lambda x: dist.all_reduce(x),
        lambda x: dist.all_reduce(x, dist.ReduceOp.SUM),
        lambda x: dist.all_reduce(x, group=group),
        lambda x: dist.all_reduce(x, op=dist.ReduceOp.SUM, group=None, async_op=False),
        lambda x: dist.all_reduce(tensor=x),
        lambda x: dist.all_reduce(x, dist.ReduceOp.MAX),
        lambda x: dist.all_reduce(x, async_op=True).wait(),
        lambda x: dist.all_reduce(x.t()),
        lambda x: dist.all_reduce(torch._neg_view(x)),
        lambda x: dist.all_reduce(torch.nn.Parameter(x)),
    ]
    found = []
    for form in forms:
        x = torch.tensor([[1.0, 2.0], [3.0, 4.0]]) * (rank + 1)
        form(x)
        found.append(x.flatten().tolist())
    assert isinstance(inner(), AllReduceShortcut) and inner().__name__ == "all_reduce"
    return found


def test_all_forms_of_a_call_give_its_result(ranks: Any) -> None:
    three = [3.0, 6.0, 9.0, 12.0]
    for found in ranks(sum_in_all_forms, 2, "ringfold").results():
        largest = [2.0, 4.0, 6.0, 8.0]
        assert found == [three] * 5 + [largest] + [three] * 4


def pass_arguments_on() -> None:
    x = torch.ones(2)
    with pytest.raises(TypeError, match="unexpected keyword argument 'operation'"):
        dist.all_reduce(x, operation="sum")
    with pytest.raises(TypeError, match=r"all_reduce\(\) missing 1 required positional argument"):
        dist.all_reduce()
    with pytest.raises(TypeError, match="Expected parameter `tensor` of type torch.Tensor"):
        dist.all_reduce([x])
    with pytest.raises(ringfold.UnsupportedError, match="no reduction of"):
        dist.all_reduce(torch.empty(2, dtype=torch.bits8))
    with pytest.warns(UserWarning, match="does not belong to the given group"):
        dist.all_reduce(x, group=dist.GroupMember.NON_GROUP_MEMBER)
    assert x.tolist() == [1.0, 1.0]


def test_wrong_arguments_get_the_errors_of_torch(ranks: Any) -> None:
    ranks(pass_arguments_on, 2, "ringfold").results()


class Functions(TorchFunctionMode):  # type: ignore[misc]
    """Records the called functions of torch."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen.append(function.__name__)
        return function(*args, **(kwargs or {}))


def observe_functions_and_methods() -> None:
    x = torch.ones(2)
    with Functions() as mode:
        dist.all_reduce(x)
    assert "all_reduce" in mode.seen and x.tolist() == [2.0, 2.0]
    group = dist.group.WORLD
    with mock.patch.object(group, "allreduce", wraps=group.allreduce) as method:
        dist.all_reduce(x)
    with mock.patch.object(RingfoldProcessGroup, "allreduce", return_value=None) as other:
        dist.all_reduce(x)
    assert (method.call_count, other.call_count) == (1, 1) and x.tolist() == [4.0, 4.0]
    with dist._coalescing_manager(device=torch.device("cpu")):
        dist.all_reduce(x)
    assert x.tolist() == [8.0, 8.0]


def test_modes_and_replaced_methods_see_the_call(ranks: Any) -> None:
    ranks(observe_functions_and_methods, 2, "ringfold").results()


def start_sums(folder: str) -> Any:
    """Start sums before and after the other rank; each form returns the handle of its sum."""
    group, rank = dist.group.WORLD, dist.get_rank()
    options = dist.AllreduceOptions()
    options.asyncOp = True
    forms: list[Any] = [
        lambda x: dist.all_reduce(x, async_op=True),
        lambda x: dist.all_reduce(x, dist.ReduceOp.SUM, group, True),
        lambda x: group.allreduce([x], options),
        lambda x: dist.all_reduce(x, dist.ReduceOp.MAX, async_op=True),
        lambda x: dist.all_reduce(x.t(), async_op=True),
    ]
    found, token = [], torch.zeros(1)
    for form in forms:
        x = torch.tensor([[1.0, 2.0], [3.0, 4.0]]) * (rank + 1)
        if rank == 1:
            dist.recv(token, 0)
        work = form(x)
        if rank == 0:
            assert not work.is_completed() and work.exception() is None
            with pytest.raises(WaitTimeoutError, match="not done after 0.01 s; it continues"):
                work.wait(timedelta(milliseconds=10))
            dist.send(token, 1)
        assert work.wait() and work.is_completed() and work.is_success()
        future = work.get_future()
        assert future.wait()[0].tolist() == work.result()[0].tolist()
        assert work.wait() and work.exception() is None
        found.append(x.flatten().tolist())
    # Handles are dropped; each call is in the record nevertheless, and is known to be complete.
    for _ in range(20):
        dist.all_reduce(x, dist.ReduceOp.MAX, async_op=True)
        dist.all_reduce(torch.ones(2), async_op=True)
    dist.barrier()
    dump = pickle.loads(Path(ringfold.torch.dump_flight_record(folder + "/fr_")).read_bytes())
    return found, len(dump["entries"]), {entry["state"] for entry in dump["entries"]}


def test_started_sums_have_the_handles_of_other_calls(ranks: Any, tmp_path: Path) -> None:
    three = [3.0, 6.0, 9.0, 12.0]
    sums = [three] * 3 + [[2.0, 4.0, 6.0, 8.0], three]
    # A message before each sum, and a barrier at the end.
    expected = (sums, 5 + 5 + 40 + 1, {"completed"})
    assert ranks(start_sums, 2, "ringfold", folder=str(tmp_path)).results() == [expected] * 2


def interrupt_a_wait() -> str:
    """An alarm of this program ends a wait for a sum that the other rank does not make."""
    if dist.get_rank() == 1:
        with pytest.raises(ringfold.AbortedError) as aborted:
            dist.recv(torch.zeros(1), 0)
        return type(aborted.value).__name__

    def ring(*_: object) -> None:
        raise TimeoutError("alarm")

    work = dist.all_reduce(torch.ones(2), async_op=True)
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    try:
        work.wait(timedelta(seconds=60))
    except TimeoutError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        signal.signal(signal.SIGALRM, before)
    return "no error"


def test_a_handlers_timeout_is_not_that_of_the_wait(ranks: Any) -> None:
    found = ranks(interrupt_a_wait, 2, "ringfold").results()
    assert found == ["TimeoutError: alarm", "AbortedError"]


def fail_in_the_shortcut() -> str:
    x = torch.ones(2)
    dist.all_reduce(x)
    if dist.get_rank() == 1:
        dist.group.WORLD.abort()
    with pytest.raises(ringfold.AbortedError) as raised:
        dist.all_reduce(x)
    return str(raised.value)


def test_the_error_of_a_short_call_names_the_call(ranks: Any) -> None:
    told = ranks(fail_in_the_shortcut, 2, "ringfold").result(0)
    assert "rank 0 was in all_reduce(SUM) of torch.float32 [2], collective 2 of group" in told
