"""Visibility of a Python process group's calls to torch's dispatcher.

A C++ process group makes each call through an operator, for example `c10d::allreduce_`. Dispatch
modes (`CommDebugMode`, `FakeTensorMode`, tracing), function transforms (`torch.func`), tensor
subclasses and the profiler observe operators. The methods of a Python process group are called
directly, and nothing observes them.

Therefore, each method of `RingfoldProcessGroup` first checks for observers. Without observers, the
method makes the call, which is many times faster than the dispatcher. With observers, it calls
torch's method of the same name, which calls the operator. Behind the observers, a kernel registered
by this module makes the call. On fake tensors and on tensors of the device `meta`, torch's own
kernels complete the call without any communication.

The kernels run before those of all devices (`BackendSelect`), and pass on the calls of other
process groups. They are registered at the first observed call, so that unobserved calls never pay
for them.
"""

import functools
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import NoneType
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch._C import _len_torch_dispatch_stack as _has_modes
from torch._C._autograd import _profiler_enabled as _is_profiled
from torch._C._functorch import maybe_current_level as _transform_level

from ringfold.errors import UnsupportedError
from ringfold.torch.options import SUM, Terms, seconds, spelled
from ringfold.torch.tensors import OnMetaError, is_ordinary
from ringfold.torch.work import held

_METHODS = {
    "_allgather_base_": ("all_gather_single", "_allgather_base"),
    "_reduce_scatter_base_": ("reduce_scatter_single", "_reduce_scatter_base"),
    "allgather_": ("allgather",),
    "allgather_coalesced_": ("allgather_coalesced",),
    "allgather_into_tensor_coalesced_": (
        "all_gather_single_coalesced", "allgather_into_tensor_coalesced",
    ),
    "allreduce_": ("allreduce",),
    "allreduce_coalesced_": ("allreduce_coalesced",),
    "alltoall_": ("alltoall",),
    "alltoall_base_": ("all_to_all_single", "alltoall_base"),
    "barrier": ("barrier",),
    "broadcast_": ("broadcast",),
    "gather_": ("gather",),
    "gather_into_tensor_": ("gather_single", "gather_into_tensor"),
    "recv_": ("recv",),
    "recv_any_source_": ("recv_anysource",),
    "reduce_": ("reduce",),
    "reduce_scatter_": ("reduce_scatter",),
    "reduce_scatter_tensor_coalesced_": (
        "reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced",
    ),
    "scatter_": ("scatter",),
    "send": ("send",),
}  # fmt: skip
"""The methods of each operator, under their names in all versions of torch."""

_OF_TERMS = frozenset(
    {
        "async_op", "asyncOp", "device_ids", "reduce_op", "root_rank", "root_tensor",
        "sparse_indices", "timeout",
    }
)  # fmt: skip
"""The parameters of operators that methods take in their options."""

_META = torch._C.DispatchKey.Meta
_STAGE = torch._C.DispatchKey.BackendSelect
_LATER = torch._C._dispatch_keyset_full_after(_STAGE)


class Observed:
    """An observed call that has not returned yet."""

    def __init__(self, group: Any, operator: str, arguments: Iterable[Any]) -> None:
        self.group = group
        self.operator = operator
        self.arguments = arguments
        self.work: dist.Work | None = None
        """The call's handle, if its kernel has run."""


_observed = threading.local()
_library: Any = None
_library_lock = threading.RLock()
# No fork during registration: the child would find kernels half registered and torch's locks taken.
os.register_at_fork(
    before=_library_lock.acquire,
    after_in_parent=_library_lock.release,
    after_in_child=_library_lock.release,
)


def observe(group_class: type) -> None:
    """Let observers see the calls of this class, which must be derived from `ProcessGroup`."""
    for operator, names in _METHODS.items():
        known = [name for name in names if hasattr(dist.ProcessGroup, name)]
        if not known:
            continue
        name, *old_names = known
        # `allreduce` checks for observers itself, before its shortest path.
        place = "_all_reduce" if name == "allreduce" else name
        _directs[operator] = getattr(group_class, place)
        setattr(group_class, place, _observable(operator, name))
        for old_name in old_names:
            setattr(group_class, old_name, _OldName(old_name, name))
    _classes.append(group_class)


_directs: dict[str, Callable[..., Any]] = {}
"""The method that makes the call of each operator."""
_classes: list[type] = []


class _OldName:
    """A deprecated name of a method.

    torch's method also calls an override of its old name, unless that is a C++ function. For an
    observed call, this descriptor returns torch's C++ function.
    """

    def __init__(self, old_name: str, name: str) -> None:
        self._of_torch = getattr(dist.ProcessGroup, old_name)
        self._name = name

    def __get__(self, group: Any, owner: type) -> Any:
        if group is None:
            return getattr(owner, self._name)
        is_observed = any(call.group is group for call in _calls())
        return self._of_torch.__get__(group) if is_observed else getattr(group, self._name)


def _observable(operator: str, name: str) -> Callable[..., Any]:
    """The method that makes the calls of an operator, and shows them to observers."""
    direct, by_operator = _directs[operator], getattr(dist.ProcessGroup, name)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        if (
            not (_has_modes() or _is_profiled())
            and _transform_level() is None
            and _are_ordinary(args)
        ):
            try:
                return direct(self, *args, **kwargs)
            except OnMetaError:
                pass
        while args[-1:] == (None,):
            args = args[:-1]
        with _observation(self, operator, (*args, *kwargs.values())) as observed:
            work = by_operator(self, *args, **kwargs)
        return work if observed.work is None else observed.work

    # torch's method calls the override, unless its caller is a method of the same name.
    call.__code__ = call.__code__.replace(co_name=name)
    return functools.wraps(direct)(call)


_ORDINARY = frozenset(
    {
        torch.Tensor, torch.nn.Parameter, NoneType, bool, int, timedelta, c10d.AllgatherOptions,
        c10d.AllreduceCoalescedOptions, c10d.AllreduceOptions, c10d.AllToAllOptions,
        c10d.BarrierOptions, c10d.BroadcastOptions, c10d.GatherOptions, c10d.ReduceOptions,
        c10d.ReduceScatterOptions, c10d.ScatterOptions,
    }
)  # fmt: skip
"""Argument types that observe nothing."""


def _are_ordinary(arguments: Iterable[Any]) -> bool:
    """Whether no argument is a tensor that observes operators."""
    for argument in arguments:
        if type(argument) in _ORDINARY:
            continue
        if type(argument) is list:
            for one in argument:
                if type(one) not in _ORDINARY and not _are_ordinary(
                    one if type(one) is list else (one,)
                ):
                    return False
        elif isinstance(argument, torch.Tensor) and not is_ordinary(argument):
            return False
    return True


@contextmanager
def _observation(group: Any, operator: str, arguments: Iterable[Any]) -> Iterator[Observed]:
    _register()
    calls = _calls()
    calls.append(Observed(group, operator, arguments))
    try:
        yield calls[-1]
    finally:
        calls.pop()


def _calls() -> list[Observed]:
    """The observed calls of this thread, outermost first."""
    calls: list[Observed] = _observed.__dict__.setdefault("calls", [])
    return calls


def _register() -> None:
    """Register the kernels, once per process."""
    global _library
    with _library_lock:
        if _library is None:
            _library = torch.library.Library("c10d", "IMPL")
            for operator, direct in _directs.items():
                kernel = _kernel(operator, direct)
                _library.impl(operator, kernel, _STAGE.name, with_keyset=True)


def _kernel(operator: str, direct: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel that the dispatcher calls for an operator behind the observers."""
    overload = getattr(torch.ops.c10d, operator).default
    schema = overload._schema
    names = [parameter.name for parameter in schema.arguments]
    defaults = {
        parameter.name: parameter.default_value
        for parameter in schema.arguments
        if parameter.has_default_value()
    }
    # The barrier's tensor only names a device.
    given = [name for name in names if name not in _OF_TERMS | {"process_group", "tensor"}]
    has_terms = not _OF_TERMS.isdisjoint(names)
    returns_tensors = len(schema.returns) > 1

    def kernel(keyset: Any, *args: Any, **kwargs: Any) -> Any:
        values = defaults | dict(zip(names, args, strict=False)) | kwargs
        group = _own(values["process_group"])
        if group is None or keyset.has(_META):
            return overload.redispatch(keyset & _LATER, *args, **kwargs)
        calls = [call for call in _calls() if (call.group, call.operator) == (group, operator)]
        said = (_terms(group, values, calls),) if has_terms else ()
        work = direct(group, *(values[name] for name in given), *said)
        # The innermost call: a mode may make calls of its own while it handles one.
        for call in calls[-1:]:
            call.work = work
        boxed = held(work).boxed()
        return (args[0], boxed) if returns_tensors else boxed

    return kernel


def _own(boxed: Any) -> Any:
    """The process group of an operator, if its class is observed."""
    # Tracing passes substitutes of a different type.
    group = dist.ProcessGroup.unbox(boxed) if isinstance(boxed, torch.ScriptObject) else None
    return group if isinstance(group, tuple(_classes)) else None


def _terms(group: Any, values: dict[str, Any], calls: list[Observed]) -> Terms:
    """The terms of a call, from the arguments of its operator."""
    operation, factor = "sum", 1.0
    if "reduce_op" in values:
        kind = c10d.ReduceOp.RedOpType(values["reduce_op"].op())
        if kind != c10d.ReduceOp.RedOpType.PREMUL_SUM:
            operation, factor = spelled(kind)
        elif calls:
            operation, factor = spelled(_reduce_op(calls[-1].arguments))
        else:
            raise UnsupportedError(
                "the operator of premul_sum has no factor; call the group's method"
            )
    timeout = timedelta(milliseconds=values.get("timeout", -1))
    is_async = values.get("async_op", values.get("asyncOp", True))
    return Terms(
        is_async, seconds(timeout, group._timeout_s), operation, factor, values.get("root_rank", 0)
    )


def _reduce_op(arguments: Iterable[Any]) -> Any:
    """The operation among a method's arguments."""
    candidates = [getattr(argument, "reduceOp", argument) for argument in arguments]
    return next((each for each in candidates if isinstance(each, c10d.ReduceOp)), SUM)
