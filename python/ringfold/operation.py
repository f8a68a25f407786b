"""The operations of reductions."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PremulSum:
    """The operation returned by `premul_sum`."""

    factor: float


def premul_sum(factor: float) -> PremulSum:
    """The sum of every rank's input times that rank's own `factor` (floats only). An `op`."""
    return PremulSum(factor)


Operation = Literal["sum", "prod", "min", "max", "avg", "mean", "band", "bor", "bxor"] | PremulSum
