"""Output arrays in the caller's framework."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from ringfold._native import Buffer
from ringfold.errors import InvalidArgumentError, UnsupportedError

Shape = tuple[int, ...]


Output = tuple[Buffer, Any, Any]
"""The buffer that a call fills, the array of the result, and the caller's array, to whose framework
the result is converted unless that is `None`.
"""


def output(like: Any, source: Buffer, shape: Shape, out: Any) -> Output:
    """The caller's `out`, or a new array like `like`, for a result of shape `shape`."""
    return made(like, source, shape) if out is None else given(out, source.dtype, shape)


def given(out: Any, dtype: str, shape: Shape) -> Output:
    """The caller's own output, which must have the result's type and number of elements."""
    buffer = Buffer(out, True)
    count = prod(shape)
    if buffer.count != count or buffer.dtype != dtype:
        raise InvalidArgumentError(
            f"`out` has {buffer.count} elements of {buffer.dtype}; "
            f"the result has {count} of {dtype}, shape {shape}"
        )
    return buffer, out, None


def made(like: Any, source: Buffer, shape: Shape) -> Output:
    """A new array of the framework of `like`, whose memory `source` describes."""
    if source.kind == "torch":
        array = like.new_empty(shape)
        return Buffer(array, True), array, None
    array = empty(like, source.dtype, shape)
    return Buffer(array, True), array, like


def empty(like: Any, dtype: str, shape: Shape) -> Any:
    """A NumPy array of the type of `like`."""
    try:
        import numpy
    except ImportError as error:
        raise UnsupportedError(
            "a result without `out` is a NumPy array; install numpy or pass `out`"
        ) from error
    own = getattr(like, "dtype", None)
    return numpy.empty(shape, own if isinstance(own, numpy.dtype) else dtype)


def registered(shape: int | Shape, dtype: Any, alloc: Callable[[int], Any]) -> Any:
    """A NumPy array over memory from `alloc`; the array keeps the memory alive."""
    try:
        import numpy
    except ImportError as error:
        raise UnsupportedError(
            "an array in registered memory is a NumPy array; install numpy"
        ) from error
    kind = numpy.dtype(dtype)
    if kind.hasobject:
        raise InvalidArgumentError(f"registered memory cannot hold Python objects, as in {kind}")
    lengths = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(length < 0 for length in lengths):
        raise InvalidArgumentError(f"invalid shape {lengths}: lengths must be 0 or more")
    memory = alloc(prod(lengths) * kind.itemsize)
    return numpy.ndarray(lengths, kind, buffer=memory)


def restored(like: Any, array: Any) -> Any:
    """`array` in the framework of `like`, if that framework follows the array API standard."""
    namespace = getattr(like, "__array_namespace__", None)
    if namespace is None or type(like).__module__ == "numpy":
        return array
    try:
        return namespace().from_dlpack(array)
    except BufferError:
        # NumPy does not export types of ml_dtypes (bfloat16) by DLPack; a framework that uses them
        # accepts the arrays.
        return namespace().asarray(array)


def divided(shape: Shape, parts: int) -> Shape:
    """The shape of one of `parts` equal blocks along axis 0."""
    rows, rest = split_first(shape)
    if rows % parts:
        raise InvalidArgumentError(
            f"axis 0 of shape {shape} cannot be divided among {parts} ranks; pass `counts`"
        )
    return (rows // parts, *rest)


def resized(shape: Shape, rows: int) -> Shape:
    """`shape` with length `rows` along axis 0."""
    return (rows, *split_first(shape)[1])


def split_first(shape: Shape) -> tuple[int, Shape]:
    """The length of axis 0, and the lengths of the other axes."""
    if not shape:
        raise InvalidArgumentError(
            "an array without axes cannot be divided; give it at least one axis"
        )
    return shape[0], shape[1:]


def gathered(
    source: Buffer, counts: Sequence[int] | None, rank: int, world_size: int
) -> tuple[Shape, int | list[int]]:
    """The shape of all ranks' inputs together, and the number of elements from each."""
    if counts is None:
        return (world_size, *source.shape), source.count
    rows = counts[rank] if len(counts) > rank else 0
    return resized(source.shape, sum(counts)), element_counts(counts, source, rows, world_size)


def scattered(
    source: Buffer, counts: Sequence[int] | None, rank: int, world_size: int
) -> tuple[Shape, int | list[int]]:
    """The shape of this rank's part of an input, and the number of elements for each rank."""
    if counts is None:
        shape = divided(source.shape, world_size)
        return shape, prod(shape)
    elements = element_counts(counts, source, sum(counts), world_size)
    return resized(source.shape, counts[rank]), elements


def element_counts(counts: Sequence[int], buffer: Buffer, rows: int, world_size: int) -> list[int]:
    """`counts` along axis 0 in elements. Raise unless axis 0 of `buffer` has length `rows`."""
    check_counts(counts, world_size)
    length, rest = split_first(buffer.shape)
    if length != rows:
        raise InvalidArgumentError(
            f"counts {list(counts)} need {rows} rows along axis 0; "
            f"the array's shape is {buffer.shape}"
        )
    return [count * prod(rest) for count in counts]


def check_counts(counts: Sequence[int], world_size: int) -> None:
    """Raise unless every rank has a count and none is negative."""
    if len(counts) != world_size or min(counts) < 0:
        raise InvalidArgumentError(
            f"counts {list(counts)}: one for each of {world_size} ranks, 0 or more"
        )
