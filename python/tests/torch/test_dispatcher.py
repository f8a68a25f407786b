"""Calls of a process group as seen by torch's dispatcher, its modes and its tracing."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch._C._distributed_c10d import AllgatherOptions
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.tensor.debug import CommDebugMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import ringfold


class Names(TorchDispatchMode):  # type: ignore[misc]
    """Records the names of the called operators."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.seen.append(str(function).removesuffix(".default"))
        return function(*args, **(kwargs or {}))

    def calls(self) -> list[str]:
        """Return the operators of process groups."""
        return [name.removeprefix("c10d.") for name in self.seen if name.startswith("c10d.")]


def calls_on(x: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Return a call for each operator, on tensors made from `x`."""
    rank, count = dist.get_rank(), dist.get_world_size()
    group = dist.distributed_c10d._get_default_group()
    after, before = (rank + 1) % count, (rank - 1) % count
    lists = [torch.zeros_like(x) for _ in range(count)]
    flat = torch.zeros_like(torch.cat(lists))
    one = torch.zeros_like(x)

    def exchange() -> None:
        operations = [dist.P2POp(dist.isend, x, after), dist.P2POp(dist.irecv, one, before)]
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    return {
        "allreduce_": lambda: dist.all_reduce(x),
        "broadcast_": lambda: dist.broadcast(x, 0),
        "reduce_": lambda: dist.reduce(x, 0),
        "allgather_": lambda: dist.all_gather(lists, x),
        "_allgather_base_": lambda: dist.all_gather_into_tensor(flat, x),
        "gather_": lambda: dist.gather(x, lists if rank == 0 else None, 0),
        "scatter_": lambda: dist.scatter(one, lists if rank == 0 else None, 0),
        "reduce_scatter_": lambda: dist.reduce_scatter(one, lists),
        "_reduce_scatter_base_": lambda: dist.reduce_scatter_tensor(one, flat),
        "alltoall_base_": lambda: dist.all_to_all_single(torch.zeros_like(flat), flat),
        "barrier": dist.barrier,
        "send recv_": exchange,
        "allreduce_ ": lambda: dist.all_reduce(x, async_op=True).wait(),
        "allgather_ ": lambda: group.allgather([lists], [x], AllgatherOptions()).wait(),
    }


def coalesced_calls_on(x: torch.Tensor) -> dict[str, Callable[[], Any]]:
    """Return calls that gloo lacks, or whose operators have no kernels for fake tensors."""
    count = dist.get_world_size()
    group = dist.distributed_c10d._get_default_group()
    flat = torch.zeros_like(torch.cat([x] * count))
    lists = [torch.zeros_like(x) for _ in range(count)]
    calls: dict[str, Callable[[], Any]] = {
        "allreduce_coalesced_": lambda: group.allreduce_coalesced([x, x]).wait(),
        "allgather_coalesced_": lambda: group.allgather_coalesced(
            [[one] for one in lists], [x]
        ).wait(),
        "allgather_into_tensor_coalesced_": lambda: group.allgather_into_tensor_coalesced(
            [flat], [x]
        ).wait(),
        "reduce_scatter_tensor_coalesced_": lambda: group.reduce_scatter_tensor_coalesced(
            [x], [flat]
        ).wait(),
    }
    if hasattr(dist, "gather_single"):
        root = dist.get_rank() == 1
        calls["gather_into_tensor_"] = lambda: dist.gather_single(x, flat if root else None, 1)
    return calls


def names_of(calls: dict[str, Callable[[], Any]]) -> dict[str, str]:
    """Return the operators that a mode sees of each call."""
    found = {}
    for name, call in calls.items():
        with Names() as mode:
            call()
        found[name.strip()] = " ".join(mode.calls())
    return found


def see_all() -> dict[str, str]:
    found = names_of(calls_on(torch.ones(3)))
    objects: list[Any] = [None] * dist.get_world_size()
    with Names() as mode:
        dist.all_gather_object(objects, dist.get_rank())
        dist.broadcast_object_list(objects, 1)
    assert objects == list(range(dist.get_world_size()))
    # torch exchanges sizes before the objects, by operators that depend on its version.
    if dist.get_backend() == "ringfold":
        assert mode.calls() == ["allgather_", "broadcast_"]
    else:
        assert len(mode.calls()) == 4 and mode.calls()[2:] == ["broadcast_"] * 2
    return found


def test_a_mode_sees_the_operator_of_every_call(ranks: Any, backend: str) -> None:
    for found in ranks(see_all, 2, backend).results():
        assert found == {name: name for name in found} and len(found) == 12


def see_all_coalesced() -> dict[str, str]:
    x = torch.ones(3)
    found = names_of(coalesced_calls_on(x))
    lists = [torch.zeros_like(x) for _ in range(2)]
    return found | names_of({"alltoall_": lambda: dist.all_to_all(lists, lists)})


def test_a_mode_sees_the_operators_of_coalesced_calls(ranks: Any) -> None:
    for found in ranks(see_all_coalesced, 2, "ringfold").results():
        assert found == {name: name for name in found} and len(found) >= 5


def count_calls() -> tuple[int, Any]:
    model = DistributedDataParallel(torch.nn.Linear(3, 2))
    with CommDebugMode() as mode:
        model(torch.ones(1, 3)).sum().backward()
        functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
    return mode.get_total_counts(), {str(name): n for name, n in mode.get_comm_counts().items()}


def test_calls_of_torch_itself_are_counted(ranks: Any, backend: str) -> None:
    for total, counts in ranks(count_calls, 2, backend).results():
        assert total == 2 and counts["c10d.allreduce_"] == 1


def call_on_fakes() -> float:
    """Make calls on rank 0 only, so that any traffic would make it wait."""
    if dist.get_rank() == 0:
        with FakeTensorMode() as mode:
            for call in calls_on(torch.ones(3)).values():
                call()
            started = dist.all_reduce(torch.ones(3), async_op=True)
            assert started.wait()
        # A fake tensor outside of its mode, and tensors without memory.
        outside = mode.from_tensor(torch.ones(3))
        dist.all_reduce(outside)
        assert isinstance(outside, FakeTensor)
        for name, call in calls_on(torch.ones(3, device="meta")).items():
            if name not in ("barrier", "send recv_"):
                call()
    probe = torch.ones(1)
    dist.all_reduce(probe)
    return float(probe)


def test_calls_on_fake_tensors_do_nothing(ranks: Any, backend: str) -> None:
    assert ranks(call_on_fakes, 2, backend).results() == [2.0, 2.0]


def wait_among_fakes() -> list[float]:
    """Wait for a call, which then copies its result, in a fake mode."""
    table = torch.ones(3, 2)
    started = dist.all_reduce(table[:, 0], async_op=True)
    with FakeTensorMode():
        started.wait()
    found: list[float] = table.flatten().tolist()
    return found


def test_calls_on_real_tensors_can_be_waited_for_in_a_fake_mode(ranks: Any) -> None:
    # gloo does not support strided tensors.
    assert ranks(wait_among_fakes, 2, "ringfold").results() == [[2.0, 1.0] * 3] * 2


def refuse_mixture() -> None:
    x = torch.ones(3)
    with FakeTensorMode():
        dist.all_reduce(x)


def test_real_tensors_in_a_fake_mode_are_an_error(ranks: Any, backend: str) -> None:
    assert "FakeTensor" in str(ranks(refuse_mixture, 1, backend).error(0))


def reduce_pending() -> list[list[float]]:
    """Reduce a tensor that another call is still filling: a tensor subclass."""
    pending = functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
    dist.all_reduce(pending)
    lists = [torch.zeros(3) for _ in range(dist.get_world_size())]
    dist.all_gather(lists, functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD))
    return [pending.tolist(), *(one.tolist() for one in lists)]


def test_results_under_way_can_be_reduced_again(ranks: Any, backend: str) -> None:
    assert ranks(reduce_pending, 2, backend).results() == [[[4.0] * 3] + [[2.0] * 3] * 2] * 2


def trace() -> tuple[str, list[Any], list[Any]]:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x * 2
        dist.all_reduce(x, dist.ReduceOp.MAX)
        flat = x.new_zeros(2 * x.numel())
        dist.all_gather_into_tensor(flat, x)
        dist.broadcast(x, 1)
        return x + 1, flat

    mine = torch.arange(3.0) + dist.get_rank()
    graph = make_fx(program, tracing_mode="fake")(mine)
    return graph.code, list(program(mine)), list(graph(mine))


def test_traced_programs_make_the_same_calls(ranks: Any) -> None:
    # gloo's operators do not wait, and a traced program has no `wait`.
    for code, made, replayed in ranks(trace, 2, "ringfold").results():
        assert "c10d.allreduce_" in code and "c10d._allgather_base_" in code
        torch.testing.assert_close(made, replayed, rtol=0, atol=0)


def use_handles() -> Any:
    rank = dist.get_rank()
    x, got = torch.full((3,), float(rank)), torch.zeros(3)
    with Names():
        total = torch.ones(3)
        reduced = dist.all_reduce(total, async_op=True)
        sent = dist.isend(x, 1 - rank)
        received = dist.irecv(got)
        assert received.wait() and sent.wait() and reduced.wait()
        averaged = torch.full((3,), float(rank + 1))
        dist.all_reduce(averaged, dist.ReduceOp.AVG)
        halved = torch.full((3,), 2.0)
        dist.all_reduce(halved, dist._make_nccl_premul_sum(0.5))
    completed = all(work.is_completed() for work in (reduced, sent, received))
    found = (total, got, averaged, halved, *reduced.result(), *reduced.get_future().wait())
    return completed, received.source_rank(), [one.tolist() for one in found]


def test_handles_and_operations_are_the_same_under_modes(ranks: Any) -> None:
    for rank, (completed, source, found) in enumerate(ranks(use_handles, 2, "ringfold").results()):
        assert completed and source == 1 - rank
        values = [2.0, 1.0 - rank, 1.5, 2.0, 2.0, 2.0]
        assert found == [[value] * 3 for value in values]


class Meddling(TorchDispatchMode):  # type: ignore[misc]
    """Makes its own calls around each call; all calls get the first call's operation."""

    operation: Any = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if "allreduce_" not in func._schema.name:
            return func(*args, **(kwargs or {}))
        self.flag = torch.ones(2)
        first, second, operation, *rest = args
        if self.operation is None:
            self.operation = operation
        dist.all_reduce(self.flag)
        made = func(first, second, self.operation, *rest, **(kwargs or {}))
        dist.all_reduce(self.flag)
        return made


def meddle() -> Any:
    x = torch.full((3,), 1.0 + dist.get_rank())
    with Names(), Meddling() as mode:
        dist.all_reduce(torch.ones(1))
        work = dist.all_reduce(x, dist.ReduceOp.AVG, async_op=True)
    work.wait()
    return x.tolist(), work.result()[0] is x, mode.flag.tolist()


def test_modes_may_make_calls_of_their_own_and_change_others(ranks: Any) -> None:
    for found in ranks(meddle, 2, "ringfold").results():
        assert found == ([3.0] * 3, True, [4.0] * 2)


def disagree() -> None:
    with Names():
        if dist.get_rank() == 0:
            dist.all_reduce(torch.ones(3))
        else:
            dist.broadcast(torch.ones(3), 0)


def test_errors_pass_through_the_dispatcher(ranks: Any) -> None:
    outcome = ranks(disagree, 2, "ringfold")
    for rank in range(2):
        assert isinstance(outcome.error(rank), ringfold.RingfoldError)


def observe_beside_gloo() -> tuple[list[str], list[float]]:
    other = dist.new_group(backend="gloo")
    own, others = torch.ones(3), torch.ones(3)
    with Names() as mode:
        dist.all_reduce(own)
        dist.all_reduce(others, group=other)
        dist.barrier(other)
    dist.all_reduce(others, group=other)
    return mode.calls(), [own[0].item(), others[0].item()]


def test_groups_of_other_backends_are_served_as_before(ranks: Any) -> None:
    for found in ranks(observe_beside_gloo, 2, "ringfold").results():
        assert found == (["allreduce_", "allreduce_", "barrier"], [2.0, 4.0])


def profile_all() -> set[str]:
    x = torch.ones(6)
    with torch.autograd.profiler.profile() as profiler:
        for call in (calls_on(x) | coalesced_calls_on(x)).values():
            call()
    return {event.key for event in profiler.key_averages()}


def test_every_call_can_be_profiled(ranks: Any) -> None:
    for names in ranks(profile_all, 2, "ringfold").results():
        seen = {"c10d::allreduce_coalesced_", "c10d::_allgather_base_", "ringfold:all_reduce"}
        assert seen <= names


def wait_by_tensor() -> float:
    """Drop the handle; torch waits for the tensor, which the last rank completes."""
    x = torch.ones(200_000)
    store = dist.distributed_c10d._get_default_store()
    if dist.get_rank() == 1:
        store.wait(["started"])
    with functional.allow_inflight_collective_as_graph_input_ctx():
        dist.all_reduce(x, async_op=True)
        if dist.get_rank() == 0:
            store.set("started", "")
        return float(functional.wait_tensor(x).mean())


def test_torch_can_wait_for_a_tensor_instead_of_a_handle(ranks: Any, backend: str) -> None:
    assert ranks(wait_by_tensor, 2, backend).results() == [2.0, 2.0]


def reduce_compiled() -> list[float]:
    @torch.compile(backend="eager")  # type: ignore[untyped-decorator]
    def program(x: torch.Tensor) -> torch.Tensor:
        x = x * 2
        dist.all_reduce(x)
        return x + 1

    found = program(torch.ones(3))
    with Names():
        again = program(torch.ones(3))
    return [found[0].item(), again[0].item()]


def test_compiled_programs_are_as_before(ranks: Any, backend: str) -> None:
    assert ranks(reduce_compiled, 2, backend).results() == [[5.0, 5.0]] * 2


@pytest.mark.parametrize("name", ["grad", "functionalize"])
def test_function_transforms_reach_the_call(ranks: Any, backend: str, name: str) -> None:
    assert ranks(transform, 2, backend, name=name).results() == [[2.0] * 3] * 2


def transform(name: str) -> list[float]:
    seen = []

    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            y = torch.ones_like(x)
            dist.all_reduce(y)
            seen.append(y)
        return (x * y).sum()

    if name == "grad":
        found: list[float] = torch.func.grad(program)(torch.ones(3)).tolist()
    else:
        found = [torch.func.functionalize(program)(torch.ones(3)).item() / 3] * 3
    return found
