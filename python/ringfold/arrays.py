"""Making outputs: arrays of the kind that the caller works with."""

from collections.abc import Callable
from typing import Any, NamedTuple

from ringfold._native import Buffer
from ringfold.errors import InvalidArgument, Unsupported

Shape = tuple[int, ...]


class Output(NamedTuple):
    """What a call fills, and what the caller gets when it is done."""

    buffer: Buffer
    finish: Callable[[], Any]


def given(out: Any, dtype: str, shape: Shape) -> Output:
    """The caller's own output, which must hold what the call gives: the type and the number of elements."""
    buffer = Buffer(out, True)
    count = element_count(shape)
    if buffer.count != count or buffer.dtype != dtype:
        raise InvalidArgument(
            f"`out` has {buffer.count} elements of {buffer.dtype}; the result has {count} of {dtype}, shape {shape}"
        )
    return Output(buffer, lambda: out)


def made(like: Any, source: Buffer, shape: Shape) -> Output:
    """A new array of the framework of `like`, whose memory `source` describes."""
    if source.kind == "torch":
        array = like.new_empty(shape)
        return Output(Buffer(array, True), lambda: array)
    array = empty(like, source.dtype, shape)
    return Output(Buffer(array, True), lambda: restored(like, array))


def empty(like: Any, dtype: str, shape: Shape) -> Any:
    """A NumPy array of the type of `like`."""
    try:
        import numpy
    except ImportError as error:
        raise Unsupported(
            "a result without `out` is a NumPy array; install numpy or give `out`"
        ) from error
    own = getattr(like, "dtype", None)
    return numpy.empty(shape, own if isinstance(own, numpy.dtype) else dtype)


def registered(shape: int | Shape, dtype: Any, alloc: Callable[[int], Any]) -> Any:
    """A NumPy array over memory of `alloc`, which it keeps alive."""
    try:
        import numpy
    except ImportError as error:
        raise Unsupported(
            "an array in registered memory is a NumPy array; install numpy"
        ) from error
    kind = numpy.dtype(dtype)
    if kind.hasobject:
        raise InvalidArgument(f"no Python objects in registered memory; {kind} has some")
    lengths = (shape,) if isinstance(shape, int) else tuple(shape)
    if any(length < 0 for length in lengths):
        raise InvalidArgument(f"shape {lengths}: lengths are 0 or more")
    memory = alloc(element_count(lengths) * kind.itemsize)
    return numpy.ndarray(lengths, kind, buffer=memory)


def restored(like: Any, array: Any) -> Any:
    """`array` as its framework has it, when `like` belongs to one that follows the array API standard."""
    namespace = getattr(like, "__array_namespace__", None)
    if namespace is None or type(like).__module__ == "numpy":
        return array
    try:
        return namespace().from_dlpack(array)
    except BufferError:
        # NumPy lends no types of ml_dtypes (bfloat16), which a framework that uses them takes as
        # arrays.
        return namespace().asarray(array)


def element_count(shape: Shape) -> int:
    """The number of elements of an array of that shape."""
    count = 1
    for length in shape:
        count *= length
    return count


def divided(shape: Shape, parts: int) -> Shape:
    """The shape of one of `parts` equal blocks along axis 0."""
    rows, rest = split_first(shape)
    if rows % parts:
        raise InvalidArgument(
            f"axis 0 of shape {shape} cannot be divided among {parts} ranks; give `counts`"
        )
    return (rows // parts, *rest)


def resized(shape: Shape, rows: int) -> Shape:
    """The same shape with `rows` along axis 0."""
    return (rows, *split_first(shape)[1])


def split_first(shape: Shape) -> tuple[int, Shape]:
    """Axis 0 and the others."""
    if not shape:
        raise InvalidArgument("an array without axes cannot be divided; give it at least one axis")
    return shape[0], shape[1:]
