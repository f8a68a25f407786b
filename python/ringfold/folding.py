"""The combination of one rank's own arrays."""

from collections.abc import Sequence
from typing import Any

from ringfold import _native, arrays
from ringfold._native import Buffer
from ringfold.errors import InvalidArgumentError


def fold(inputs: Sequence[Any], op: str = "sum", *, out: Any = None) -> Any:
    """Return the combination of `inputs`, element by element, in the order of the canonical tree.

    The tree of one array is the array; the tree of n arrays is the tree of the first p combined
    with the tree of the rest, where p is the largest power of two below n. If each rank folds a
    power of two arrays, and then makes a reproducible `all_reduce`, the result has the bits of an
    `all_reduce` in which each array is a rank's own; see docs/guides/reproducible.md. 16- and 8-bit
    floats are rounded here and once more by the `all_reduce`: convert such arrays to float32 first.

    Needs no communicator.

    Args:
        inputs: One or more arrays of one type and shape, which stay unchanged unless one is `out`.
        op: `sum`, `prod`, `min`, `max`, `band`, `bor` or `bxor`.
        out: An array for the result; by default a new one.
    """
    if not inputs:
        raise InvalidArgumentError("fold: no input; give one array at least")
    sources = [Buffer(each) for each in inputs]
    buffer, result, like = arrays.output(inputs[0], sources[0], sources[0].shape, out)
    _native.fold(sources, buffer, op)
    return result if like is None else arrays.restored(like, result)
