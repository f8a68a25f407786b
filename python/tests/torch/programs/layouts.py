"""Tensors in all kinds of layouts, each inside a larger piece of memory that calls must not touch.

A `Placed` tensor checks all of that memory: its elements have the expected values, and the bytes
between and around them are unchanged.
"""

from collections.abc import Callable
from typing import Any

import torch

from programs.oracle import kind

GUARD = 8
"""Number of elements before and after a tensor."""
FILL = 0xA5
"""Value of the bytes that no call may write; 1 in memory of bool."""
_COMPLEX_OF = {"float16": "complex32", "float32": "complex64", "float64": "complex128"}

View = Callable[[torch.Tensor], torch.Tensor]


class Wrong(Exception):
    """A result differs from the expected one."""


def side(count: int) -> int:
    """Return the length of the shorter of two axes with `count` elements in total."""
    return next(each for each in (5, 4, 3, 2, 1) if count % each == 0)


def _flat(count: int) -> tuple[int, View]:
    return count + 2 * GUARD, lambda base: base[GUARD : GUARD + count]


def _shifted(count: int) -> tuple[int, View]:
    return count + 2 * GUARD, lambda base: base[1 : 1 + count]


def _matrix(count: int) -> tuple[int, View]:
    a = side(count)
    return count + GUARD, lambda base: base[:count].view(a, count // a)


def _strided(count: int) -> tuple[int, View]:
    return 2 * count + GUARD, lambda base: base[GUARD // 2 : GUARD // 2 + 2 * count : 2]


def _column(count: int) -> tuple[int, View]:
    return 3 * count, lambda base: base.view(count, 3)[:, 1]


def _transposed(count: int) -> tuple[int, View]:
    a = side(count)
    return count + GUARD, lambda base: base[:count].view(count // a, a).t()


def _channels_last(count: int) -> tuple[int, View]:
    a = side(count)
    return count + GUARD, lambda base: base[:count].view(1, count // a, 1, a).permute(0, 3, 1, 2)


def _scalar(count: int) -> tuple[int, View]:
    assert count == 1
    return GUARD, lambda base: base[GUARD // 2]


def _negative(count: int) -> tuple[int, View]:
    return count, lambda base: base.conj().imag


def _conjugate(count: int) -> tuple[int, View]:
    return count, lambda base: base.conj()


_KINDS: dict[str, Callable[[int], tuple[int, View]]] = {
    "flat": _flat, "graded": _flat, "shifted": _shifted, "matrix": _matrix, "strided": _strided,
    "column": _column, "transposed": _transposed, "channels_last": _channels_last,
    "scalar": _scalar, "negative": _negative, "conjugate": _conjugate,
}  # fmt: skip


class Pool:
    """Registered memory of a group, from which tensors are cut."""

    def __init__(self, memory: torch.Tensor) -> None:
        self.memory = memory
        self.keep: Any = None
        """Registration of the memory, if the memory existed before."""
        self.used = 0

    def cut(self, length: int, itemsize: int) -> torch.Tensor | None:
        """Return `length` unused bytes of the memory, or `None` if too few are left."""
        begin = -(-self.used // itemsize) * itemsize
        if begin + length > self.memory.numel():
            return None
        self.used = begin + length
        return self.memory[begin : begin + length]

    def reuse(self) -> None:
        """Make all memory available again; all calls have ended."""
        self.used = 0

    def close(self) -> None:
        """Close the registration."""
        if self.keep is not None:
            self.keep.close()
            self.keep = None


class Placed:
    """A tensor in a layout."""

    def __init__(
        self,
        layout: str,
        dtype: str,
        count: int,
        values: torch.Tensor | None,
        pool: Pool | None = None,
    ) -> None:
        length, self._view = _KINDS[layout](count)
        base_kind = kind(_COMPLEX_OF[dtype] if layout == "negative" else dtype)
        fill = 1 if dtype == "bool" else FILL
        length *= base_kind.itemsize
        memory = None if pool is None else pool.cut(length, base_kind.itemsize)
        if memory is None:
            memory = torch.empty(length, dtype=torch.uint8)
        self._memory = memory.fill_(fill)
        self._kind = base_kind
        self.tensor = self._view(self._memory.view(base_kind))
        if values is not None:
            self.tensor.copy_(values.view(self.tensor.shape))
        # A tensor made in inference mode could not be written later.
        with torch.inference_mode(False):
            self._before = torch.empty(self._memory.shape, dtype=torch.uint8)
        self._before.copy_(self._memory)
        if layout == "graded":
            self.tensor = self.tensor.detach().requires_grad_()

    def check(self, due: torch.Tensor | None) -> None:
        """Raise `Wrong` unless these elements, if any, are the only change of the memory."""
        expected = self._before
        if due is not None:
            expected = expected.clone()
            view = self._view(expected.view(self._kind))
            view.copy_(due.view(view.shape))
        with torch.inference_mode(False):
            is_right = torch.equal(self._memory, expected)
        if not is_right:
            raise Wrong(self._difference(expected, due))

    def _difference(self, expected: torch.Tensor, due: torch.Tensor | None) -> str:
        bytes_ = (self._memory != expected).nonzero().flatten()
        at = int(bytes_[0]) // self._kind.itemsize
        size = self._kind.itemsize
        part = slice(at * size, (at + 1) * size)
        found, right = (each[part].tolist() for each in (self._memory, expected))
        text = f"{len(bytes_)} of {len(expected)} bytes differ, the first at element {at} of the "
        text += f"memory: {found} for {right}"
        if due is not None and due.dtype.itemsize >= 1 and due.numel() <= 12:
            shown = self._view(self._memory.view(self._kind)).flatten()
            text += f"; {shown.tolist()} for {due.tolist()}"
        return text
