"""Tensors as memory: the element type for ringfold, and plain copies of tensors that are not plain.

A *plain* tensor is contiguous, in host memory, and its bytes are its value. Calls use plain tensors
in place; other tensors are replaced by a copy, which is copied back when the call is done
(`Staging`). A call of a lane does the same on the device; lists of tensors stay in pieces.
"""

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import torch

from ringfold.errors import InvalidArgumentError, UnsupportedError
from ringfold.torch.level0 import Passage


class Numbers(NamedTuple):
    """A data type for arithmetic: ringfold's name, and the number of such values per element."""

    name: str
    width: int = 1


ARITHMETIC = {
    torch.float64: Numbers("float64"),
    torch.float32: Numbers("float32"),
    torch.float16: Numbers("float16"),
    torch.bfloat16: Numbers("bfloat16"),
    torch.float8_e4m3fn: Numbers("float8_e4m3"),
    torch.float8_e5m2: Numbers("float8_e5m2"),
    torch.int8: Numbers("int8"),
    torch.uint8: Numbers("uint8"),
    torch.int16: Numbers("int16"),
    torch.uint16: Numbers("uint16"),
    torch.int32: Numbers("int32"),
    torch.uint32: Numbers("uint32"),
    torch.int64: Numbers("int64"),
    torch.uint64: Numbers("uint64"),
    torch.bool: Numbers("bool"),
    # A complex number counts as its two parts, which are only added and scaled.
    torch.complex32: Numbers("float16", 2),
    torch.complex64: Numbers("float32", 2),
    torch.complex128: Numbers("float64", 2),
}
"""The types that can be reduced."""

_ADDITIVE = frozenset({"sum", "avg", "premul_sum"})
_OF_FLOATS = frozenset({"avg", "premul_sum"})
_DIVIDED = frozenset({torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64})
"""The integer types that torch can divide."""
_BY_SIZE = {1: "uint8", 2: "uint16", 4: "uint32", 8: "uint64"}


def numbers(tensor: torch.Tensor, operation: str) -> Numbers:
    """The type of a tensor to reduce; raises if the operation does not exist for it."""
    dtype = tensor.dtype
    found = ARITHMETIC.get(dtype)
    if found is None:
        raise UnsupportedError(
            f"no reduction of {dtype}; convert it first, for example to torch.float32"
        )
    if dtype.is_complex and operation not in _ADDITIVE:
        raise InvalidArgumentError(
            f"operation `{operation}` does not exist for {dtype}; complex types support sum, avg "
            "and premul_sum"
        )
    if (
        operation in _OF_FLOATS
        and not (dtype.is_floating_point or dtype.is_complex)
        and not is_truncated(dtype, operation)
    ):
        raise InvalidArgumentError(
            f"operation `{operation}` does not exist for {dtype}; use sum, and divide or multiply"
        )
    return found


def is_truncated(dtype: torch.dtype, operation: str) -> bool:
    """Whether the operation is a sum that is divided at its end and rounded toward zero, as with
    NCCL and gloo.
    """
    return operation == "avg" and dtype in _DIVIDED


def moved(tensor: torch.Tensor) -> Numbers:
    """The type of a tensor that is only moved: its own if ringfold has that, so that peers can
    compare types, else an unsigned integer type of equal size, or bytes.
    """
    found = ARITHMETIC.get(tensor.dtype)
    if found is not None:
        return found
    size = tensor.element_size()
    return Numbers(_BY_SIZE[size]) if size in _BY_SIZE else Numbers("uint8", size)


class OnMetaError(UnsupportedError):
    """A tensor without memory, which only torch's dispatcher can serve."""


def is_ordinary(tensor: torch.Tensor) -> bool:
    """Whether operators on the tensor run unmodified; subclasses can intercept them."""
    return type(tensor).__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether host calls can use the tensor in place."""
    return tensor.is_cpu and is_dense(tensor)


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether the tensor's bytes are its value, in order."""
    return (
        not tensor.is_sparse
        and tensor.is_contiguous()
        and not tensor.is_neg()
        and not (tensor.dtype.is_complex and tensor.is_conj())
    )


def check(tensor: torch.Tensor) -> None:
    """Raise for tensors that cannot be used, not even through a copy."""
    if not tensor.is_cpu and tensor.device.type != accelerator():
        raise (OnMetaError if tensor.is_meta else UnsupportedError)(
            f"a tensor on device `{tensor.device}`; ringfold moves memory of the host and of "
            "torch's accelerator: copy it (`tensor.cpu()`)"
        )
    if tensor.layout is not torch.strided:
        raise UnsupportedError(
            f"a tensor of layout {tensor.layout}; only all_reduce takes sparse COO tensors, others "
            "dense ones"
        )


def accelerator() -> str | None:
    """The type of this process' devices, if it has any."""
    found = torch.accelerator.current_accelerator()
    return None if found is None else found.type


Side: TypeAlias = torch.Tensor | list[torch.Tensor]
"""One side of a call: a tensor that can be used in place; on a device, also several pieces."""


class Staging:
    """Substitutes for a call's tensors that can be used in place, and the work on them at the
    call's end.
    """

    __slots__ = ("_back", "_sums", "device", "passage")

    def __init__(self) -> None:
        self.passage: Passage | None = None
        """The copies of device tensors from and to the host, for host calls."""
        self._back: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._sums: list[tuple[Side, int]] = []
        self.device: torch.device | None = None
        """The device whose memory the call uses, if not the host's."""

    def stays(self, tensor: torch.Tensor) -> bool:
        """Whether the call uses a device tensor's memory on its device."""
        raise NotImplementedError

    def source(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor with the same content that can be used in place."""
        if is_plain(tensor):
            return tensor
        way = self._way(tensor)
        if way is not None:
            return way.source(tensor)
        if is_dense(tensor):
            return tensor
        return tensor.detach().resolve_conj().resolve_neg().contiguous()

    def target(self, tensor: torch.Tensor, *, is_read: bool = False) -> torch.Tensor:
        """A tensor usable in place that is copied to `tensor` at the end; with `is_read`, it starts
        as a copy of `tensor`.
        """
        if is_plain(tensor):
            return tensor
        way = self._way(tensor)
        if way is not None:
            return way.target(tensor, is_read)
        if is_dense(tensor):
            return tensor
        flat = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        if is_read:
            flat.copy_(tensor.detach())
        self._back.append((tensor, flat))
        return flat

    def joined(self, tensors: Sequence[torch.Tensor]) -> Side:
        """The content of all tensors, one after the other, usable in place."""
        together = adjacent(tensors)
        if together is not None:
            return self.source(together)
        ways = [self._way(tensor) for tensor in tensors]
        if ways[0] is not None:
            return ways[0].joined(tensors)
        if not tensors[0].is_cpu:
            return [self.source(tensor) for tensor in tensors]
        return torch.cat([tensor.detach().reshape(-1) for tensor in tensors])

    def divided(self, tensors: Sequence[torch.Tensor]) -> Side:
        """Memory for `tensors`, one after the other; substitutes are copied back at the end."""
        together = adjacent(tensors)
        if together is not None:
            return self.target(together)
        ways = [self._way(tensor) for tensor in tensors]
        if ways[0] is not None:
            return ways[0].divided(tensors)
        if not tensors[0].is_cpu:
            return [self.target(tensor) for tensor in tensors]
        count = sum(tensor.numel() for tensor in tensors)
        flat = torch.empty(count, dtype=tensors[0].dtype, device="cpu")
        parts = flat.split([tensor.numel() for tensor in tensors])
        self._back.extend(
            (tensor, part.view(tensor.shape)) for tensor, part in zip(tensors, parts, strict=True)
        )
        return flat

    def _way(self, tensor: torch.Tensor) -> Passage | None:
        """The copies through the host, or `None` for a tensor that needs none."""
        check(tensor)
        if tensor.is_cpu or self.stays(tensor):
            return None
        if self.passage is None:
            self.passage = Passage(tensor.device)
        elif self.passage.device != tensor.device:
            raise mixed(tensor.device, self.passage.device)
        return self.passage

    def divide(self, total: Side, by: int) -> None:
        """Make `finish` divide integers, rounding toward zero."""
        self._sums.append((total, by))

    @property
    def is_needed(self) -> bool:
        """Whether `finish` has work to do."""
        return bool(self._back or self._sums)

    def finish(self) -> None:
        """Divide sums, and copy the results to their destinations."""
        for total, by in self._sums:
            for piece in pieces(total):
                piece.detach().div_(by, rounding_mode="trunc")
        self._sums.clear()
        for tensor, part in self._back:
            tensor.detach().copy_(part)
        self._back.clear()


def mixed(one: torch.device, other: torch.device | None) -> InvalidArgumentError:
    """The error of a call with tensors of two devices."""
    return InvalidArgumentError(
        f"tensors on `{one}` and `{other or 'cpu'}` in one call; they must be on the same device"
    )


def pieces(side: Side | None) -> list[torch.Tensor]:
    """The pieces of a side; none on a rank without it."""
    if side is None:
        return []
    return side if isinstance(side, list) else [side]


def adjacent(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """All tensors as one, if they are consecutive in one storage: usually the chunks of a larger
    tensor.
    """
    first = tensors[0]
    if not is_dense(first):
        return None
    if len(tensors) == 1:
        return first
    address = first.data_ptr()
    storage = first.untyped_storage()._cdata
    for tensor in tensors:
        if (
            tensor.data_ptr() != address
            or not is_dense(tensor)
            or tensor.untyped_storage()._cdata != storage
        ):
            return None
        address += tensor.nbytes
    total = sum(tensor.numel() for tensor in tensors)
    return first.detach().as_strided((total,), (1,), first.storage_offset())


def listed(tensors: Any) -> list[torch.Tensor]:
    """A list of tensors, from one tensor or from the list that C++ callers make."""
    return [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)


def same_type(tensors: Iterable[torch.Tensor], of: torch.Tensor) -> None:
    """Raise for a list of mixed types."""
    for tensor in tensors:
        if tensor.dtype != of.dtype:
            raise InvalidArgumentError(
                f"tensors of {tensor.dtype} and {of.dtype} in one call; they must have the same "
                "type"
            )
