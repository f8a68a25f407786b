"""torch's calls: one function for each form, by name, and the contexts around calls.

A function takes a member's group, inputs and outputs; for in-place calls on a whole tensor, these
are the same tensors. It returns the handle of an asynchronous call. Functional forms return their
results.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.tensor.debug import CommDebugMode
from torch.utils._python_dispatch import TorchDispatchMode

from programs.layouts import Wrong
from programs.steps import Call

Tensors = list[torch.Tensor]
Made = Callable[[Call, Any, Tensors, Tensors, bool], Any]


def operation(call: Call) -> Any:
    """Return torch's operation of a call."""
    if call.op == "PREMUL_SUM":
        return dist._make_nccl_premul_sum(call.factor)
    return getattr(dist.ReduceOp, call.op)


def splits(call: Call, group: Any) -> tuple[list[int], list[int]]:
    """Return the numbers of rows that a member receives from and sends to each member."""
    me = group.rank()
    return [row[me] for row in call.matrix], list(call.matrix[me])


def broadcast(call: Call, group: Any, given: Tensors, out: Tensors, is_async: bool) -> Any:
    return dist.broadcast(out[0], group=group, group_src=call.root, async_op=is_async)


def all_reduce(call: Call, group: Any, given: Tensors, out: Tensors, is_async: bool) -> Any:
    return dist.all_reduce(out[0], operation(call), group, is_async)


def all_reduce_coalesced(
    call: Call, group: Any, given: Tensors, out: Tensors, is_async: bool
) -> Any:
    done = dist.all_reduce_coalesced(out, operation(call), group, is_async)
    # Its future is the one that torch's own form returns.
    return done


def sparse_all_reduce(call: Call, group: Any, given: Tensors, out: Tensors, is_async: bool) -> Any:
    sparse = out[0].to_sparse()
    done = dist.all_reduce(sparse, operation(call), group, is_async)
    if is_async:
        done.wait()
    out[0].copy_(sparse.to_dense())
    return None


def reduce(call: Call, group: Any, given: Tensors, out: Tensors, is_async: bool) -> Any:
    return dist.reduce(
        out[0], op=operation(call), group=group, async_op=is_async, group_dst=call.root
    )


def all_gather(call: Call, group: Any, given: Tensors, out: Tensors, is_async: bool) -> Any:
    return dist.all_gather(out, given[0], group, is_async)


def all_gather_coalesced(
    call: Call, group: Any, given: Tensors, out: Tensors, is_async: bool
) -> Any:
    parts, members = len(given), len(call.counts)
    # The oracle groups outputs by part, torch by member.
    lists = [[out[part * members + member] for part in range(parts)] for member in range(members)]
    return dist.all_gather_coalesced(lists, given, group, is_async)


def all_gather_into_tensor(
    call: Call, group: Any, given: Tensors, out: Tensors, is_async: bool
) -> Any:
    return dist.all_gather_into_tensor(out[0], given[0], group, is_async)


def gather(call: Call, group: Any, given: Tensors, out: Tensors, is_async: bool) -> Any:
    lists = out if group.rank() == call.root else None
    return dist.gather(given[0], lists, group=group, async_op=is_async, group_dst=call.root)


def scatter(call: Call, group: Any, given: Tensors, out: Tensors, is_async: bool) -> Any:
    lists = given if group.rank() == call.root else None
    return dist.scatter(out[0], lists, group=group, async_op=is_async, group_src=call.root)


def reduce_scatter(call: Call, group: Any, given: Tensors, out: Tensors, is_async: bool) -> Any:
    return dist.reduce_scatter(out[0], given, operation(call), group, is_async)


def reduce_scatter_tensor(
    call: Call, group: Any, given: Tensors, out: Tensors, is_async: bool
) -> Any:
    return dist.reduce_scatter_tensor(out[0], given[0], operation(call), group, is_async)


def all_to_all(call: Call, group: Any, given: Tensors, out: Tensors, is_async: bool) -> Any:
    return dist.all_to_all(out, given, group, is_async)


def all_to_all_single(call: Call, group: Any, given: Tensors, out: Tensors, is_async: bool) -> Any:
    got, gave = splits(call, group)
    return dist.all_to_all_single(out[0], given[0], got, gave, group, is_async)


def managed(one: Made) -> Made:
    """Return a function that makes several such calls within torch's coalescing manager."""

    def make(call: Call, group: Any, given: Tensors, out: Tensors, is_async: bool) -> Any:
        with dist._coalescing_manager(group, async_ops=is_async) as manager:
            for part in range(call.form.parts):
                one(call, group, given[part : part + 1], out[part : part + 1], False)
        return manager.works[0] if is_async else None

    return make


def functional_all_reduce(call: Call, group: Any, given: Tensors, out: Tensors, _: bool) -> Any:
    return functional.all_reduce(given[0], call.op.lower(), group)


def functional_broadcast(call: Call, group: Any, given: Tensors, out: Tensors, _: bool) -> Any:
    # The root is a member here, not a rank of the job.
    return functional.broadcast(given[0], call.root, group)


def functional_all_gather(call: Call, group: Any, given: Tensors, out: Tensors, _: bool) -> Any:
    return functional.all_gather_tensor(given[0], 0, group)


def functional_reduce_scatter(call: Call, group: Any, given: Tensors, out: Tensors, _: bool) -> Any:
    return functional.reduce_scatter_tensor(given[0], call.op.lower(), 0, group)


def functional_all_to_all(call: Call, group: Any, given: Tensors, out: Tensors, _: bool) -> Any:
    got, gave = splits(call, group)
    return functional.all_to_all_single(given[0], got, gave, group)


MAKERS: dict[str, Made] = {
    "all_reduce": all_reduce,
    "all_reduce_coalesced": all_reduce_coalesced,
    "managed_all_reduce": managed(all_reduce),
    "sparse_all_reduce": sparse_all_reduce,
    "broadcast": broadcast,
    "reduce": reduce,
    "all_gather": all_gather,
    "all_gather_coalesced": all_gather_coalesced,
    "all_gather_into_tensor": all_gather_into_tensor,
    "managed_all_gather": managed(all_gather_into_tensor),
    "gather": gather,
    "scatter": scatter,
    "reduce_scatter": reduce_scatter,
    "reduce_scatter_tensor": reduce_scatter_tensor,
    "managed_reduce_scatter": managed(reduce_scatter_tensor),
    "all_to_all": all_to_all,
    "all_to_all_single": all_to_all_single,
    "functional_all_reduce": functional_all_reduce,
    "functional_broadcast": functional_broadcast,
    "functional_all_gather": functional_all_gather,
    "functional_reduce_scatter": functional_reduce_scatter,
    "functional_all_to_all": functional_all_to_all,
}


class Seen(TorchDispatchMode):  # type: ignore[misc]
    """Lists the calls that torch's dispatcher executes."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@contextmanager
def seen(is_due: bool) -> Iterator[None]:
    """Run calls under a dispatch mode, which must see them if `is_due`."""
    with Seen() as mode:
        yield
    if is_due and not any("c10d" in name for name in mode.names):
        raise Wrong(f"a dispatch mode saw no call among {mode.names}")


@contextmanager
def counted(is_due: bool) -> Iterator[None]:
    """Run calls under torch's own counting mode, which must count them if `is_due`."""
    with CommDebugMode() as mode:
        yield
    if is_due and mode.get_total_counts() == 0:
        raise Wrong("the mode that counts calls counted none")


def surrounding(mode: str, is_seen: bool) -> Any:
    """Return the context of a call."""
    match mode:
        case "logged":
            return seen(is_seen)
        case "counted":
            return counted(is_seen)
        case "inference":
            return torch.inference_mode()
        case "no_grad":
            return torch.no_grad()
        case "profiled":
            return torch.autograd.profiler.profile()
        case "elsewhere":
            return torch.device("meta")
    return nullcontext()
