"""Input memory: every kind that is accepted, and every refusal."""

import array
import gc
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ringfold
from ringfold._native import Buffer

DTYPES = [
    *("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"),
    *("float16", "float32", "float64", "bool"),
]


class Dlpack:
    """A NumPy array that offers only DLPack, in the newer or the older protocol."""

    def __init__(self, owner: Any, *, old: bool = False, device: int = 1) -> None:
        self.owner, self.old, self.device = owner, old, device

    def __dlpack_device__(self) -> tuple[int, int]:
        return (self.device, 0)

    def __dlpack__(self, **arguments: Any) -> Any:
        if self.old and arguments:
            raise TypeError("unexpected keyword argument")
        return self.owner.__dlpack__(**arguments)


@pytest.mark.parametrize("dtype", DTYPES)
def test_numpy_arrays_of_every_type_come_in_without_a_copy(dtype: str) -> None:
    buffer = Buffer(np.ones((3, 5), dtype), True)
    assert (buffer.dtype, buffer.shape, buffer.count, buffer.kind) == (dtype, (3, 5), 15, "buffer")
    assert not buffer.copied


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_ml_dtypes_arrays_come_in_by_name(name: str) -> None:
    x = np.arange(6).reshape(2, 3).astype(getattr(ml_dtypes, name))
    buffer = Buffer(x, True)
    assert (buffer.dtype, buffer.shape) == (name.removesuffix("fn"), (2, 3))
    assert bytes(buffer.tobytes()) == x.tobytes()


def test_the_e4m3_with_infinities_is_refused() -> None:
    with pytest.raises(ringfold.UnsupportedError, match="no data type `float8_e4m3`"):
        Buffer(np.zeros(3, ml_dtypes.float8_e4m3))


def test_things_with_the_buffer_protocol_come_in() -> None:
    for thing in (bytearray(b"abc"), memoryview(b"abcd"), array.array("d", [1.0, 2.0])):
        assert bytes(Buffer(thing).tobytes()) == memoryview(thing).tobytes()


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dlpack_of_both_protocols_comes_in(dtype: str, old: bool) -> None:
    x = np.arange(12).reshape(3, 4).astype(dtype)
    buffer = Buffer(Dlpack(x, old=old), True)
    assert (buffer.dtype, buffer.shape, buffer.kind) == (dtype, (3, 4), "dlpack")
    assert bytes(buffer.tobytes()) == x.tobytes()


def test_scattered_dlpack_is_gathered() -> None:
    x = np.arange(24, dtype="int16").reshape(2, 3, 4)[:, ::-1, ::2]
    assert bytes(Buffer(Dlpack(x)).tobytes()) == x.tobytes()


def test_read_only_dlpack_is_no_output() -> None:
    x = np.zeros(3)
    x.flags.writeable = False
    Buffer(Dlpack(x))
    with pytest.raises(ringfold.InvalidArgumentError, match="read-only"):
        Buffer(Dlpack(x), True)


def test_memory_of_another_device_is_refused() -> None:
    with pytest.raises(ringfold.UnsupportedError, match="copy it to host memory"):
        Buffer(Dlpack(np.zeros(3), device=2))


def test_a_capsule_that_was_used_is_refused() -> None:
    capsule = np.zeros(3).__dlpack__()

    class Twice(Dlpack):
        def __dlpack__(self, **arguments: Any) -> Any:
            return capsule

    Buffer(Twice(None))
    with pytest.raises(ValueError):
        Buffer(Twice(None))


def test_dlpack_memory_lives_as_long_as_the_buffer() -> None:
    x = np.arange(1000)
    alive = weakref.ref(x)
    buffer = Buffer(Dlpack(x))
    del x
    gc.collect()
    assert alive() is not None
    assert bytes(buffer.tobytes()) == np.arange(1000).tobytes()
    del buffer
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    "make",
    [
        lambda x: x[::2],
        lambda x: x.T,
        lambda x: x[:, 1:3],
        lambda x: x[::-1],
        lambda x: np.broadcast_to(x[0], (5, 4)),
        lambda x: np.asfortranarray(x),
    ],
)
def test_a_scattered_input_is_copied_in_order(make: Any) -> None:
    x = make(np.arange(24, dtype="float32").reshape(6, 4))
    buffer = Buffer(x)
    assert buffer.copied
    assert bytes(buffer.tobytes()) == x.tobytes()
    with pytest.raises(ringfold.InvalidArgumentError, match="read-only|contiguous"):
        Buffer(x, True)


def test_a_misaligned_input_is_copied_and_a_misaligned_output_refused() -> None:
    x = np.frombuffer(bytearray(8 * 4 + 1), dtype="uint8")[1:].view("float64")
    assert Buffer(x).copied
    with pytest.raises(ringfold.InvalidArgumentError, match="aligned"):
        Buffer(x, True)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1, 1)])
def test_odd_shapes_keep_their_shape(shape: tuple[int, ...]) -> None:
    buffer = Buffer(np.zeros(shape), True)
    assert buffer.shape == shape
    assert buffer.count == np.zeros(shape).size


@pytest.mark.parametrize(
    "thing", [np.float32(3), np.array(3.0), np.array(3).astype(ml_dtypes.bfloat16)]
)
def test_arrays_without_axes_come_in(thing: Any) -> None:
    buffer = Buffer(thing)
    assert (buffer.shape, buffer.count, bytes(buffer.tobytes())) == ((), 1, thing.tobytes())


def test_a_read_only_output_is_refused() -> None:
    with pytest.raises(ringfold.InvalidArgumentError, match="read-only"):
        Buffer(b"abc", True)


@pytest.mark.parametrize(
    "thing", [np.zeros(2, "complex64"), np.zeros(2, ">f4"), np.zeros(2, "S3"), np.zeros(2, "i4,i4")]
)
def test_types_without_meaning_here_are_refused(thing: Any) -> None:
    with pytest.raises(ringfold.UnsupportedError):
        Buffer(thing)


@pytest.mark.parametrize(
    "thing",
    [np.zeros(2, "complex64"), np.zeros((), "complex128"), Dlpack(np.zeros(2, "complex64"))],
)
def test_complex_numbers_are_refused_with_advice_that_holds(thing: Any) -> None:
    with pytest.raises(
        ringfold.UnsupportedError, match=r"`complex(64|128)`.*view_as_real.*products, minima"
    ) as caught:
        Buffer(thing)
    assert "uint8" not in str(caught.value)


@pytest.mark.parametrize("thing", [3, 2.5, None, [1, 2], "text"])
def test_things_without_memory_are_refused_with_a_way_out(thing: Any) -> None:
    with pytest.raises(ringfold.InvalidArgumentError, match="numpy.asarray"):
        Buffer(thing)


def test_a_buffer_that_is_used_cannot_be_resized() -> None:
    memory = bytearray(10)
    buffer = Buffer(memory)
    with pytest.raises(BufferError):
        memory.append(1)
    del buffer
    memory.append(1)
