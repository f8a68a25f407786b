"""The operations of reductions."""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, Literal, SupportsIndex

from ringfold.errors import InvalidArgumentError


@dataclass(frozen=True)
class PremulSum:
    """The operation returned by `premul_sum`."""

    factor: float


def premul_sum(factor: float) -> PremulSum:
    """The operation that sums every rank's input times that rank's own `factor` (floats only)."""
    return PremulSum(factor)


Operation = Literal["sum", "prod", "min", "max", "avg", "mean", "band", "bor", "bxor"] | PremulSum


def root_and_op(
    given: Sequence[Any], root: SupportsIndex | None, op: Operation | None
) -> tuple[int, Operation]:
    """The root and the operation of a `reduce`, from positional and named arguments."""
    roots = [each for each in (*given, root) if hasattr(each, "__index__")]
    ops = [each for each in (*given, op) if not (each is None or hasattr(each, "__index__"))]
    if len(roots) > 1 or len(ops) > 1:
        raise InvalidArgumentError(
            f"reduce with roots {roots} and operations {ops}; pass at most one of each"
        )
    return index((roots or [0])[0]), (ops or ["sum"])[0]
