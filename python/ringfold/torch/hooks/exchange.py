"""The mean over all ranks of lists of elements, by an all-gather whose result each rank adds up in
rank order.

The data that a rank receives grows with the number of ranks: lists are faster than an all-reduce of
the whole bucket only while density x ranks is well below 2. If the lists of a step are longer than
the all-reduce would be, an all-reduce is made instead; all ranks know all lengths, and so make the
same decision. Replicas stay bitwise identical either way.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ringfold.torch.hooks.buckets import Layout, summing_dtype
from ringfold.torch.hooks.wire import Code, Sent

# Backends whose all-gather supports blocks of different sizes.
UNEVEN_BACKENDS = ("ringfold",)


@dataclass
class Traffic:
    """This rank's traffic so far."""

    elements: int = 0
    """Number of elements of all gradients."""
    elements_sent: int = 0
    """Number of elements sent in lists."""
    bytes_sent: int = 0
    """Size of the lists, in bytes."""
    bytes_dense: int = 0
    """Size of the gradients themselves, in bytes."""

    @property
    def density(self) -> float:
        """The share of elements that were sent."""
        return self.elements_sent / max(self.elements, 1)

    def count(self, sent: Sent, buffer: torch.Tensor) -> None:
        """Count one bucket."""
        self.elements += buffer.numel()
        self.elements_sent += sent.indices.numel()
        self.bytes_sent += sent.payload.numel()
        self.bytes_dense += buffer.numel() * buffer.element_size()


def mean_of_lists(
    sent: Sent, sizes: list[int], code: Code, layout: Layout, buffer: torch.Tensor, group: Any
) -> torch.futures.Future[torch.Tensor]:
    """Set a bucket's `buffer` to the mean of the ranks' lists. `sizes` are the payload sizes in
    bytes, by rank.
    """
    if sum(sizes) > 2 * buffer.numel() * buffer.element_size():
        return mean_of_whole(sent, len(sizes), buffer, group)
    if max(sizes) == 0:
        return completed(buffer.zero_())
    gathering, payloads = gather(sent.payload, sizes, group)

    def add_up(done: Any) -> torch.Tensor:
        # Raises the error of the collective.
        done.value()
        total = buffer.to(summing_dtype(buffer.dtype)).zero_()
        for payload in payloads:
            indices, values = code.decode(payload, layout, buffer.dtype)
            total.index_add_(0, indices, values.to(total.dtype))
        return buffer.copy_(total.div_(len(sizes)))  # No copy if they are the same tensor.

    return gathering.then(add_up)


def gather(
    payload: torch.Tensor, sizes: list[int], group: Any
) -> tuple[torch.futures.Future[Any], list[torch.Tensor]]:
    """Start to gather all ranks' payloads, of these sizes; the future completes when they have
    arrived.
    """
    longest = max(sizes)
    is_even = min(sizes) == longest
    # torch guarantees only blocks of equal size; unless the backend supports others, payloads are
    # padded.
    is_padded = not is_even and dist.get_backend(group) not in UNEVEN_BACKENDS
    blocks = [longest] * len(sizes) if is_padded else sizes
    gathered = payload.new_empty(sum(blocks))
    rows = list(gathered.split(blocks))
    if is_even or is_padded:
        mine = torch.nn.functional.pad(payload, (0, longest - payload.numel()))
        work = dist.all_gather_into_tensor(gathered, mine, group=group, async_op=True)
    else:
        work = dist.all_gather(rows, payload, group=group, async_op=True)
    return work.get_future(), [row[:size] for row, size in zip(rows, sizes, strict=True)]


def mean_of_whole(
    sent: Sent, ranks: int, buffer: torch.Tensor, group: Any
) -> torch.futures.Future[torch.Tensor]:
    """Set `buffer` to the mean of the ranks' lists, by an all-reduce of the whole bucket."""
    buffer.zero_()
    buffer[sent.indices] = sent.values.div(ranks)
    return (
        dist.all_reduce(buffer, group=group, async_op=True)
        .get_future()
        .then(lambda done: done.value()[0])
    )


def sizes_of_all(payload: torch.Tensor, ranks: int, group: Any) -> list[int]:
    """The payload size of every rank, in bytes. Blocks until all ranks have sent theirs.

    Blocks instead of chaining futures: collectives must be started in the same order on all ranks,
    and only the thread that runs backward ensures that.
    """
    mine = torch.tensor([payload.numel()], dtype=torch.int64, device=payload.device)
    sizes = torch.empty(ranks, dtype=torch.int64, device=payload.device)
    dist.all_gather_into_tensor(sizes, mine, group=group)
    return [int(size) for size in sizes.tolist()]


def completed(value: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """A completed future."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(value)
    return future
