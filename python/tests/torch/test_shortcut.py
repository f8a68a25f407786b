"""The shorter way into `torch.distributed.all_reduce`: what observes a call still sees it, and
calls of another form go the long way.
"""

from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode

import ringfold
from ringfold._native import AllReduceShortcut
from ringfold.torch.backend import RingfoldProcessGroup


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
