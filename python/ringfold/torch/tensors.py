"""Tensors as memory: the element type for ringfold, and plain copies of tensors that are not plain.

A *plain* tensor is dense, contiguous, in host memory, and its bytes are its value. Calls use plain
tensors in place; other tensors are replaced by a copy, which is copied back when the call is done
(`Staging`).
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from ringfold.errors import InvalidArgument, Unsupported


class Numbers(NamedTuple):
    """A data type for arithmetic: ringfold's name, and its number of such values per element."""

    name: str
    width: int = 1


ARITHMETIC = {
    torch.float64: Numbers("float64"),
    torch.float32: Numbers("float32"),
    torch.float16: Numbers("float16"),
    torch.bfloat16: Numbers("bfloat16"),
    torch.int8: Numbers("int8"),
    torch.uint8: Numbers("uint8"),
    torch.int16: Numbers("int16"),
    torch.uint16: Numbers("uint16"),
    torch.int32: Numbers("int32"),
    torch.uint32: Numbers("uint32"),
    torch.int64: Numbers("int64"),
    torch.uint64: Numbers("uint64"),
    torch.bool: Numbers("bool"),
    # A complex number is its two parts, as long as they are only added and scaled.
    torch.complex32: Numbers("float16", 2),
    torch.complex64: Numbers("float32", 2),
    torch.complex128: Numbers("float64", 2),
}
"""The types that have sums."""

SUMMED = {dtype: numbers.name for dtype, numbers in ARITHMETIC.items() if numbers.width == 1}
"""The names of types with one value per element."""

_ADDITIVE = frozenset({"sum", "avg", "premul_sum"})
_OF_FLOATS = frozenset({"avg", "premul_sum"})
_DIVIDED = frozenset({torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64})
"""The integers that torch divides."""
_BY_SIZE = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}


def numbers(tensor: torch.Tensor, operation: str) -> Numbers:
    """The type of a tensor that is reduced, if the operation exists for it."""
    dtype = tensor.dtype
    found = ARITHMETIC.get(dtype)
    if found is None:
        raise Unsupported(
            f"no reduction of {dtype}; convert it first, for example to torch.float32"
        )
    if dtype.is_complex and operation not in _ADDITIVE:
        raise InvalidArgument(
            f"operation `{operation}` does not exist for {dtype}; of complex numbers there are sum "
            "and avg"
        )
    if (
        operation in _OF_FLOATS
        and not (dtype.is_floating_point or dtype.is_complex)
        and not is_truncated(dtype, operation)
    ):
        raise InvalidArgument(
            f"operation `{operation}` does not exist for {dtype}; use sum, and divide or multiply"
        )
    return found


def is_truncated(dtype: torch.dtype, operation: str) -> bool:
    """Whether the operation is a sum that is divided at its end, and rounded toward zero, as with
    NCCL and gloo.
    """
    return operation == "avg" and dtype in _DIVIDED


def moved(tensor: torch.Tensor) -> Numbers:
    """The type of a tensor that is only moved: its own if ringfold has it, so that peers can
    compare, else bytes.
    """
    found = ARITHMETIC.get(tensor.dtype)
    if found is not None:
        return found
    size = tensor.element_size()
    return Numbers(_BY_SIZE[size]) if size in _BY_SIZE else Numbers("uint8", size)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether the tensor can be used in place."""
    return (
        tensor.is_cpu
        and not tensor.is_sparse
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and not (tensor.dtype.is_complex and tensor.is_conj())
    )


def check(tensor: torch.Tensor) -> None:
    """Raise for tensors that a copy cannot help."""
    if not tensor.is_cpu:
        raise Unsupported(
            f"a tensor on device `{tensor.device}`; ringfold moves host memory: copy it "
            "(`tensor.cpu()`), or use "
            f"`cpu:ringfold,{tensor.device.type}:…` as backend"
        )
    if tensor.layout is not torch.strided:
        raise Unsupported(
            f"a tensor of layout {tensor.layout}; only all_reduce takes sparse COO tensors, others "
            "dense ones"
        )


class Staging:
    """Plain substitutes for a call's tensors, and the work to do with them at its end."""

    __slots__ = ("_back", "_sums")

    def __init__(self) -> None:
        self._back: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._sums: list[tuple[torch.Tensor, int]] = []

    def source(self, tensor: torch.Tensor) -> torch.Tensor:
        """A plain tensor with the same content."""
        if is_plain(tensor):
            return tensor
        check(tensor)
        return tensor.detach().resolve_conj().resolve_neg().contiguous()

    def target(self, tensor: torch.Tensor, *, is_read: bool = False) -> torch.Tensor:
        """A plain tensor that `finish` copies to `tensor`; it starts as a copy of `tensor` if it
        `is_read`.
        """
        if is_plain(tensor):
            return tensor
        check(tensor)
        flat = torch.empty(tensor.shape, dtype=tensor.dtype)
        if is_read:
            flat.copy_(tensor.detach())
        self._back.append((tensor, flat))
        return flat

    def joined(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """One plain tensor with the concatenated content of all."""
        together = adjacent(tensors)
        if together is not None:
            return together
        for tensor in tensors:
            check(tensor)
        return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])

    def divided(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        """One plain tensor whose parts `finish` copies to `tensors`."""
        together = adjacent(tensors)
        if together is not None:
            return together
        for tensor in tensors:
            check(tensor)
        flat = torch.empty(sum(tensor.numel() for tensor in tensors), dtype=tensors[0].dtype)
        parts = flat.split([tensor.numel() for tensor in tensors])
        self._back.extend(
            (tensor, part.view(tensor.shape)) for tensor, part in zip(tensors, parts, strict=True)
        )
        return flat

    def divide(self, total: torch.Tensor, by: int) -> None:
        """Make `finish` divide a plain tensor of integers, rounding toward zero."""
        self._sums.append((total, by))

    @property
    def is_needed(self) -> bool:
        """Whether `finish` has work to do."""
        return bool(self._back or self._sums)

    def finish(self) -> None:
        """Copy the results to their destinations."""
        for total, by in self._sums:
            total.detach().div_(by, rounding_mode="trunc")
        self._sums.clear()
        for tensor, part in self._back:
            tensor.detach().copy_(part)
        self._back.clear()


def adjacent(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """All tensors as one, if they are consecutive in one storage: usually the chunks of a larger
    tensor.
    """
    first = tensors[0]
    if not is_plain(first):
        return None
    if len(tensors) == 1:
        return first
    address = first.data_ptr()
    storage = first.untyped_storage()._cdata
    for tensor in tensors:
        if (
            tensor.data_ptr() != address
            or not is_plain(tensor)
            or tensor.untyped_storage()._cdata != storage
        ):
            return None
        address += tensor.nbytes
    total = sum(tensor.numel() for tensor in tensors)
    return first.detach().as_strided((total,), (1,), first.storage_offset())


def listed(tensors: Any) -> list[torch.Tensor]:
    """One tensor, or the list that C++ callers make of it."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def same_type(tensors: Iterable[torch.Tensor], of: torch.Tensor) -> None:
    """Raise for a list of mixed types."""
    for tensor in tensors:
        if tensor.dtype != of.dtype:
            raise InvalidArgument(
                f"tensors of {tensor.dtype} and {of.dtype} in one call; they must have the same "
                "type"
            )
