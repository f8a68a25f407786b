"""Encodings of sparse gradients. A *code* turns some elements of a bucket into bytes and back.

Codes may round, or omit elements: `Sent` has the values that the receivers will read, and the
sender keeps the difference. A non-finite value is always delivered as such, and never kept by the
sender, so that loss scaling and users' own checks see it. Decoded data comes from a peer: indices
are checked where they are used, by `index_add_`.
"""

from typing import NamedTuple, Protocol

import torch

from ringfold.errors import InvalidArgumentError
from ringfold.torch.hooks.buckets import Layout

INDEX_BYTES = 4


class Sent(NamedTuple):
    """The result of encoding some elements."""

    payload: torch.Tensor
    """The bytes, as a flat uint8 tensor."""
    indices: torch.Tensor
    """The indices of the encoded elements."""
    values: torch.Tensor
    """The values that a receiver will read."""


class Code(Protocol):
    """An encoding of elements of a bucket."""

    def encode(
        self, indices: torch.Tensor, values: torch.Tensor, layout: Layout, dtype: torch.dtype
    ) -> Sent:
        """Encode `values` at `indices` of a bucket of `dtype`."""

    def decode(
        self, payload: torch.Tensor, layout: Layout, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The indices and values in a payload."""


class Exact:
    """Indices of 32 bits, then the values in the gradient's own type."""

    def encode(
        self, indices: torch.Tensor, values: torch.Tensor, layout: Layout, dtype: torch.dtype
    ) -> Sent:
        check_bits(layout, 31)
        rounded = values.to(dtype)
        payload = torch.cat((indices.to(torch.int32).view(torch.uint8), rounded.view(torch.uint8)))
        return Sent(payload, indices, rounded)

    def decode(
        self, payload: torch.Tensor, layout: Layout, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        count = payload.numel() // (INDEX_BYTES + dtype.itemsize)
        split = count * INDEX_BYTES
        # A copy is aligned, regardless of the payload's alignment.
        return payload[:split].clone().view(torch.int32), payload[split:].clone().view(dtype)


class Signs:
    """One word of 32 bits per element: every value is the threshold or its negative (Strom 2015).

    A word is the index, inverted for a negative value; bit 30 marks a non-finite value.
    """

    STRANGE = 1 << 30

    def __init__(self, threshold: float) -> None:
        self.threshold = threshold

    def encode(
        self, indices: torch.Tensor, values: torch.Tensor, layout: Layout, dtype: torch.dtype
    ) -> Sent:
        check_bits(layout, 30)
        strange = ~values.isfinite()
        words = torch.where(strange, indices + self.STRANGE, indices)
        words = torch.where(values < 0, ~words, words).to(torch.int32)
        return Sent(words.view(torch.uint8), indices, self._values(values < 0, strange, dtype))

    def decode(
        self, payload: torch.Tensor, layout: Layout, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        words = payload.clone().view(torch.int32)
        negative = words < 0
        marked = torch.where(negative, ~words, words)
        strange = marked >= self.STRANGE
        return torch.where(strange, marked - self.STRANGE, marked), self._values(
            negative, strange, dtype
        )

    def _values(
        self, negative: torch.Tensor, strange: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        values = torch.full(negative.shape, self.threshold, dtype=dtype, device=negative.device)
        return torch.where(negative, -values, values).masked_fill_(strange, float("nan"))


class Powers:
    """One word of 32 bits per element: an index of 28 bits, the sign, and 3 bits of exponent
    (Tsuzuku et al. 2018, §4.2).

    Values are rounded to the nearest power of two, but not above the largest in their parameter,
    whose exponent E is written once in front; the 3 bits are d = E - log2(value). Elements with d >
    7 are omitted. A parameter with a non-finite value has STRANGE for its E, and all its values
    arrive as NaN.
    """

    INDEX_BITS = 28
    D_MAX = 7
    STRANGE = 1 << 15

    def encode(
        self, indices: torch.Tensor, values: torch.Tensor, layout: Layout, dtype: torch.dtype
    ) -> Sent:
        check_bits(layout, self.INDEX_BITS)
        parameter = self._parameter_of(indices, layout)
        fractions, exponents = torch.frexp(values.abs())
        # A fraction is in [0.5, 1): the power below is 2^(e-1), that above 2^e.
        floors = exponents.to(torch.int32) - 1
        tops = torch.full(
            (len(layout.sizes),), -self.STRANGE, dtype=torch.int32, device=values.device
        )
        tops.scatter_reduce_(
            0, parameter, torch.where(values.isfinite(), floors, self.STRANGE), "amax"
        )
        top = tops[parameter]
        distance = (top - torch.minimum(floors + (fractions >= 0.75), top)).masked_fill_(
            top == self.STRANGE, 0
        )
        kept = ((distance <= self.D_MAX) & (values != 0)).nonzero().view(-1)
        indices, distance, negative = indices[kept], distance[kept], values[kept] < 0
        words = (indices << 4) | (negative.to(torch.int64) << 3) | distance
        # Words from 2^31 on become negative numbers of 32 bits.
        payload = torch.cat(
            (tops, torch.where(words >= 1 << 31, words - (1 << 32), words).to(torch.int32))
        )
        return Sent(
            payload.view(torch.uint8), indices, self._values(top[kept], distance, negative, dtype)
        )

    def decode(
        self, payload: torch.Tensor, layout: Layout, dtype: torch.dtype
    ) -> tuple[torch.Tensor, torch.Tensor]:
        tops, words = (
            payload.clone()
            .view(torch.int32)
            .to(torch.int64)
            .split((len(layout.sizes), payload.numel() // INDEX_BYTES - len(layout.sizes)))
        )
        indices = (words >> 4) & ((1 << self.INDEX_BITS) - 1)
        top = tops[self._parameter_of(indices, layout)]
        return indices, self._values(top, words & self.D_MAX, (words & 8) != 0, dtype)

    @staticmethod
    def _parameter_of(indices: torch.Tensor, layout: Layout) -> torch.Tensor:
        ends = torch.tensor([end for _, _, end in layout.spans()], device=indices.device)
        # An index beyond the bucket is refused when it is used.
        return torch.bucketize(indices, ends, right=True).clamp_(max=len(layout.sizes) - 1)

    def _values(
        self, top: torch.Tensor, distance: torch.Tensor, negative: torch.Tensor, dtype: torch.dtype
    ) -> torch.Tensor:
        ones = torch.where(negative, -1.0, 1.0).to(torch.float64)
        values = torch.ldexp(ones, top - distance).to(dtype)
        return values.masked_fill_(top == self.STRANGE, float("nan"))


def check_bits(layout: Layout, bits: int) -> None:
    """Raise if an index into the bucket needs more than `bits` bits."""
    if sum(layout.sizes) > 1 << bits:
        raise InvalidArgumentError(
            f"a bucket of more than 2^{bits} elements; give DDP a smaller bucket_cap_mb"
        )
