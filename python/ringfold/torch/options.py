"""torch's option objects, translated for ringfold.

torch expresses "not set" in several ways: a timeout of -1 ms in options, of 0 in `Work.wait`, and
`asyncOp` that C++ callers leave at its default. `ReduceOp` objects compare equal to their kinds but
do not hash like them; they are distinguished by `.op`, which the kinds (`ReduceOp.SUM`) do not
have.
"""

from datetime import timedelta
from typing import Any, NamedTuple

import torch
from torch._C._distributed_c10d import (
    AllgatherOptions,
    AllreduceCoalescedOptions,
    AllreduceOptions,
    AllToAllOptions,
    BarrierOptions,
    BroadcastOptions,
    GatherOptions,
    ReduceOp,
    ReduceOptions,
    ReduceScatterOptions,
    ScatterOptions,
)

from ringfold.errors import InvalidArgumentError

NOTHING = timedelta(0)

_OPERATIONS = {
    ReduceOp.RedOpType.SUM: "sum",
    ReduceOp.RedOpType.AVG: "avg",
    ReduceOp.RedOpType.PRODUCT: "prod",
    ReduceOp.RedOpType.MIN: "min",
    ReduceOp.RedOpType.MAX: "max",
    ReduceOp.RedOpType.BAND: "band",
    ReduceOp.RedOpType.BOR: "bor",
    ReduceOp.RedOpType.BXOR: "bxor",
    ReduceOp.RedOpType.PREMUL_SUM: "premul_sum",
}


_REDUCING = frozenset(
    {AllreduceOptions, AllreduceCoalescedOptions, ReduceOptions, ReduceScatterOptions}
)
_ROOTED = frozenset({BroadcastOptions, GatherOptions, ScatterOptions})
_MOVING = _ROOTED | {AllgatherOptions, AllToAllOptions, BarrierOptions}
SUM = ReduceOp.RedOpType.SUM
_PLAIN_SUM = ("sum", 1.0)


class Options(NamedTuple):
    """The settings of one group: `pg_options` of torch's `init_process_group` and `new_group`, the
    same on all ranks.
    """

    reproducible: bool = False
    """Whether reductions have the same bits for any size, algorithm, transport and division into
    hosts; see docs/guides/reproducible.md."""


class Terms(NamedTuple):
    """The arguments of a call other than its tensors."""

    is_async: bool
    """Whether the caller waits through the returned handle."""
    timeout_s: float
    operation: str = "sum"
    factor: float = 1.0
    root: int = 0


def terms(
    opts: Any,
    default_timeout_s: float,
    op: Any = None,
    root: int | None = None,
    timeout: timedelta | None = None,
) -> Terms:
    """The terms in an option object, or in the arguments of the forms without one.

    Forms without options (`allreduce(tensor, op, timeout)`) pass an operation, a root or a timeout
    in their place. `opts` may also be the terms.
    """
    kind = type(opts)
    if kind in _REDUCING:
        reduce_op, timeout = opts.reduceOp, opts.timeout
        # A comparison takes a sixth of the time of a look-up by kind, and training makes mostly
        # sums.
        operation, factor = _PLAIN_SUM if reduce_op == SUM else spelled(reduce_op)
        timeout_s = default_timeout_s if timeout <= NOTHING else timeout.total_seconds()
        root = opts.rootRank if kind is ReduceOptions else 0
        return Terms(opts.asyncOp, timeout_s, operation, factor, root)
    if kind in _MOVING:
        timeout = opts.timeout
        timeout_s = default_timeout_s if timeout <= NOTHING else timeout.total_seconds()
        root = opts.rootRank if kind in _ROOTED else 0
        return Terms(opts.asyncOp, timeout_s, "sum", 1.0, root)
    if kind is Terms:
        return opts  # type: ignore[no-any-return]
    if isinstance(opts, ReduceOp):
        op = opts
    elif isinstance(opts, int):
        root = opts
    elif isinstance(opts, timedelta):
        timeout = opts
    elif opts is not None:
        raise InvalidArgumentError(f"invalid options of type `{kind.__name__}`")
    operation, factor = ("sum", 1.0) if op is None else spelled(op)
    return Terms(True, seconds(timeout, default_timeout_s), operation, factor, root or 0)


def spelled(op: Any) -> tuple[str, float]:
    """The name of a `ReduceOp`, and its factor if it has one."""
    # torch also accepts a kind as an instance of `ReduceOp`.
    kind = getattr(op, "op", op)
    name = _OPERATIONS.get(kind)
    if name is None:
        raise InvalidArgumentError(
            f"unsupported operation {op}; use one of {', '.join(_OPERATIONS.values())}"
        )
    if name != "premul_sum":
        return name, 1.0
    factor = op.__getstate__()[1]
    if isinstance(factor, torch.Tensor) and factor.numel() != 1:
        raise InvalidArgumentError(
            f"premul_sum with a factor of {factor.numel()} elements; use one number per rank"
        )
    return name, float(factor)


def seconds(timeout: timedelta | None, default_s: float) -> float:
    """A timeout in seconds; the default if it is not set."""
    if timeout is None or timeout <= NOTHING:
        return default_s
    return timeout.total_seconds()
