"""The mean over all ranks of lists of elements: every rank's list goes to every other, which adds them up in the order of ranks.

That is an all-gather, so what a rank receives grows with the number of ranks: lists win over an all-reduce of the whole bucket
only while density x ranks is well below 2. Where the lists of a step are longer than the all-reduce would be, that is made
instead; all ranks know all lengths, and so agree on it. Replicas stay identical bit for bit either way.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ringfold.torch.hooks.buckets import Layout, summing_dtype
from ringfold.torch.hooks.wire import Code, Sent

# Those whose all-gather takes blocks of different sizes.
UNEVEN_BACKENDS = ("ringfold",)


@dataclass
class Traffic:
    """What has been sent so far by this rank."""

    elements: int = 0
    """Elements of all gradients."""
    elements_sent: int = 0
    """Those of them that were put into a list."""
    bytes_sent: int = 0
    """The lists' bytes."""
    bytes_dense: int = 0
    """What the gradients themselves would have been."""

    @property
    def density(self) -> float:
        """The share of elements that were sent."""
        return self.elements_sent / max(self.elements, 1)

    def count(self, sent: Sent, buffer: torch.Tensor) -> None:
        """Add one bucket."""
        self.elements += buffer.numel()
        self.elements_sent += sent.indices.numel()
        self.bytes_sent += sent.payload.numel()
        self.bytes_dense += buffer.numel() * buffer.element_size()


def mean_of_lists(
    sent: Sent, sizes: list[int], code: Code, layout: Layout, buffer: torch.Tensor, group: Any
) -> torch.futures.Future[torch.Tensor]:
    """Put into `buffer`, a bucket's, the mean over the ranks of what each has sent. `sizes` are the payloads' bytes by rank."""
    if sum(sizes) > 2 * buffer.numel() * buffer.element_size():
        return mean_of_whole(sent, len(sizes), buffer, group)
    if max(sizes) == 0:
        return completed(buffer.zero_())
    gathering, payloads = gather(sent.payload, sizes, group)

    def add_up(done: Any) -> torch.Tensor:
        # Raises what went wrong.
        done.value()
        total = buffer.to(summing_dtype(buffer.dtype)).zero_()
        for payload in payloads:
            indices, values = code.decode(payload, layout, buffer.dtype)
            total.index_add_(0, indices, values.to(total.dtype))
        return buffer.copy_(
            total.div_(len(sizes))
        )  # Nothing is copied where they are the same tensor.

    return gathering.then(add_up)


def gather(
    payload: torch.Tensor, sizes: list[int], group: Any
) -> tuple[torch.futures.Future[Any], list[torch.Tensor]]:
    """Begin to gather all ranks' payloads, of these sizes; they are there when the future is done."""
    longest = max(sizes)
    is_even = min(sizes) == longest
    # Torch promises no more than even blocks; the others are padded where the backend has no more either.
    is_padded = not is_even and dist.get_backend(group) not in UNEVEN_BACKENDS
    blocks = [longest] * len(sizes) if is_padded else sizes
    gathered = payload.new_empty(sum(blocks))
    rows = list(gathered.split(blocks))
    if is_even or is_padded:
        mine = torch.nn.functional.pad(payload, (0, longest - payload.numel()))
        work = dist.all_gather_single(gathered, mine, group=group, async_op=True)
    else:
        work = dist.all_gather(rows, payload, group=group, async_op=True)
    return work.get_future(), [row[:size] for row, size in zip(rows, sizes, strict=True)]


def mean_of_whole(
    sent: Sent, ranks: int, buffer: torch.Tensor, group: Any
) -> torch.futures.Future[torch.Tensor]:
    """The same by an all-reduce of the whole bucket."""
    buffer.zero_()
    buffer[sent.indices] = sent.values.div(ranks)
    return (
        dist.all_reduce(buffer, group=group, async_op=True)
        .get_future()
        .then(lambda done: done.value()[0])
    )


def sizes_of_all(payload: torch.Tensor, ranks: int, group: Any) -> list[int]:
    """How many bytes every rank has to send. Blocks until all have said so.

    It is waited for rather than chained to: collectives must be begun in the same order on all ranks, and only the thread
    that runs backward sees to that.
    """
    mine = torch.tensor([payload.numel()], dtype=torch.int64, device=payload.device)
    sizes = torch.empty(ranks, dtype=torch.int64, device=payload.device)
    dist.all_gather_single(sizes, mine, group=group)
    return [int(size) for size in sizes.tolist()]


def completed(value: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    """A future that is done."""
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(value)
    return future
