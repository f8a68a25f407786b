"""Values of calls, from their definitions: inputs and expected outputs of each member.

Numbers are small integers, so that every result is exact in every type. Data that is only moved may
have any bits.
"""

import math
from typing import Any

import torch

from programs.steps import Call

# A prime, so that no size is a multiple of it.
PERIOD = 31
LONGEST = 300_000
BYTE_STEP = 37
_INDEX = torch.arange(LONGEST + PERIOD)
_BYTES = (torch.arange(256 + 251) * BYTE_STEP % 251).to(torch.uint8)
# For each operation: the number of distinct values, the least before scaling, and the scale. Sums,
# products and averages over four ranks are exact in eight bits.
_RANGES = {
    "SUM": (31, -15, 1), "AVG": (5, -2, 12), "PREMUL_SUM": (13, -6, 2), "PRODUCT": (3, 1, 1),
    "MIN": (31, -15, 1), "MAX": (31, -15, 1), "BAND": (31, 0, 4), "BOR": (31, 0, 4),
    "BXOR": (31, 0, 4),
}  # fmt: skip


def kind(name: str) -> Any:
    """Return torch's type with this name."""
    return getattr(torch, name)


def numbers(dtype: str, count: int, shift: int, op: str = "SUM") -> torch.Tensor:
    """Return small numbers whose reduction is exact."""
    is_integer = "int" in dtype
    # Averages of integers are rounded.
    period, least, scale = _RANGES["SUM" if op == "AVG" and is_integer else op]
    if dtype.startswith("uint"):
        least = max(0, least)
    found = ((_INDEX[:count] + shift % PERIOD) % period + least) * scale
    if dtype == "bool":
        return found % 3 == 0
    if dtype.startswith("complex"):
        twice = torch.complex(found.double(), ((found * 3 + scale) % (scale * 3)).double())
        return twice.to(kind(dtype))
    return found.to(kind(dtype))


def bits(dtype: str, count: int, shift: int) -> torch.Tensor:
    """Return arbitrary bits."""
    length = count * kind(dtype).itemsize
    begin = shift * 13 % 251
    repeated = _BYTES[begin : begin + 251].repeat(length // 251 + 1)[:length]
    return repeated.view(kind(dtype))


class Oracle:
    """Values of one call."""

    def __init__(self, call: Call) -> None:
        self.call = call
        self.members = range(len(call.counts))

    def given(self, member: int) -> list[torch.Tensor]:
        """Return a member's inputs, flat: the tensors of a list, or one tensor; for all parts."""
        return [each for part in self._parts() for each in self._given(member, part)]

    def due(self, member: int) -> list[torch.Tensor]:
        """Return the tensors of a member that a call fills, flat, as expected after the call.

        For in-place calls on a whole tensor, these are all tensors."""
        return [each for part in self._parts() for each in self._due(member, part)]

    def _parts(self) -> range:
        return range(self.call.form.parts)

    def _values(self, count: int, member: int, peer: int, part: int) -> torch.Tensor:
        call = self.call
        shift = call.salt + 7 * member + 3 * peer + 11 * part
        if call.is_bits:
            return bits(call.dtype, count, shift)
        return numbers(call.dtype, count, shift, call.op)

    def _block(self, member: int, peer: int, part: int) -> torch.Tensor:
        """Return a member's block for another member."""
        call = self.call
        count = call.matrix[member][peer] if call.matrix else call.counts[peer]
        return self._values(count, member, peer, part)

    def _given(self, member: int, part: int) -> list[torch.Tensor]:
        call = self.call
        match call.form.blocks:
            case "whole":
                found = self._values(call.counts[0], member, 0, part)
                if call.name == "sparse_all_reduce":
                    found = found * (found % 3 == 0)
                return [found]
            case "gathered":
                return [self._values(call.counts[member], member, 0, part)]
        if call.form.has_root and member != call.root:
            return []
        blocks = [self._block(member, peer, part) for peer in self.members]
        return blocks if call.form.is_list else [joined(blocks)]

    def _due(self, member: int, part: int) -> list[torch.Tensor]:
        call, form = self.call, self.call.form
        is_idle = form.has_root and member != call.root
        if form.blocks == "whole":
            if form.reduces:
                givers = self.members if not is_idle else [member]
                inputs = [self._given(each, part)[0] for each in givers]
                return [self._reduced(inputs) if not is_idle else inputs[0]]
            return self._given(call.root, part)
        if form.blocks == "gathered":
            if is_idle:
                return []
            found = [self._given(each, part)[0] for each in self.members]
        elif form.blocks == "exchanged":
            found = [self._block(each, member, part) for each in self.members]
        elif form.reduces:
            inputs = [self._block(each, member, part) for each in self.members]
            return [self._reduced(inputs)]
        else:
            return [self._block(call.root, member, part)]
        return found if form.is_list else [joined(found)]

    def _reduced(self, inputs: list[torch.Tensor]) -> torch.Tensor:
        return reduced(self.call.dtype, self.call.op, self.call.factor, inputs)


def joined(blocks: list[torch.Tensor]) -> torch.Tensor:
    """Return the concatenation of blocks."""
    return torch.cat([as_bytes(block) for block in blocks]).view(blocks[0].dtype)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the bytes of a flat tensor."""
    return tensor.view(torch.uint8)


def reduced(dtype: str, op: str, factor: float, inputs: list[torch.Tensor]) -> torch.Tensor:
    """Return the reduction of inputs, computed in a wide type."""
    name = dtype
    wide = (
        torch.complex128
        if name.startswith("complex")
        else torch.float64
        if "float" in name
        else torch.int64
    )
    stacked = torch.stack([each.to(wide) for each in inputs])
    total: torch.Tensor
    match op:
        case "SUM":
            total = stacked.sum(0)
        case "AVG" if wide == torch.int64:
            total = stacked.sum(0).div(len(inputs), rounding_mode="trunc")
        case "AVG":
            total = stacked.sum(0) / len(inputs)
        case "PREMUL_SUM":
            total = (stacked * factor).sum(0)
        case "PRODUCT":
            total = stacked.prod(0)
        case "MIN":
            total = stacked.amin(0)
        case "MAX":
            total = stacked.amax(0)
        case _:
            total = stacked[0]
            for each in stacked[1:]:
                total = by_bit(op, total, each)
    return total.to(kind(dtype))


def by_bit(op: str, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the bitwise operation of two tensors."""
    return one & other if op == "BAND" else one | other if op == "BOR" else one ^ other


def weights_after(steps: int, salt: int, ranks: int) -> list[torch.Tensor]:
    """Return the parameters of `network` after training with the mean of all ranks' gradients."""
    model = network()
    for step in range(steps):
        model.zero_grad()
        for rank in range(ranks):
            loss(model, step, salt, rank).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= parameter.grad / ranks
    return [parameter.detach() for parameter in model.parameters()]


def network() -> Any:
    """Return a small model with integer parameters."""
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Linear(4, 3)).double()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            flat = numbers("float64", math.prod(parameter.shape), number, "PRODUCT") - 2
            parameter.copy_(flat.view(parameter.shape))
    return model


def loss(model: Any, step: int, salt: int, rank: int) -> Any:
    """Return the loss of one rank's inputs in a step; its gradients are multiples of 12."""
    x = numbers("float64", 20, salt + 7 * rank + 3 * step, "AVG").view(4, 5)
    return model(x).sum() * 12
