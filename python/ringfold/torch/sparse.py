"""The sum of sparse COO tensors.

Ranks have different non-zero positions, so nothing can be added in flight: every rank gathers all
positions and values and adds them itself, in rank order, which gives the same bits on all ranks.
There are three gathers: number, positions, values. The call blocks, because sizes must be known
before the next gather. Device tensors are gathered and added on the device, in the order of the
current stream.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from ringfold.errors import InvalidArgumentError
from ringfold.torch.options import Terms
from ringfold.torch.work import NO_LIMIT, RingfoldWork

if TYPE_CHECKING:
    from ringfold.torch.collectives import Collectives


def all_reduce(group: "Collectives", tensor: torch.Tensor, said: Terms) -> dist.Work:
    """`tensor` becomes the coalesced sum of all ranks' tensors, which have the same shape."""
    if said.operation != "sum":
        raise InvalidArgumentError(
            f"operation `{said.operation}` does not exist for sparse tensors; only sum"
        )
    own = tensor.coalesce()
    places, values = own.indices(), own.values()
    count = torch.tensor([values.shape[0]], device="cpu")
    counts = [torch.empty_like(count) for _ in range(group._world_size)]
    group.allgather([counts], [count]).wait()
    lengths = [int(length) for length in counts]
    all_places = [places.new_empty((places.shape[0], length)) for length in lengths]
    all_values = [values.new_empty((length, *values.shape[1:])) for length in lengths]
    group.allgather([all_places], [places]).wait()
    group.allgather([all_values], [values]).wait()
    joined = torch.sparse_coo_tensor(
        torch.cat(all_places, dim=1), torch.cat(all_values), tensor.shape, device=tensor.device
    )
    tensor.copy_(joined.coalesce())
    return RingfoldWork([], [tensor]) if tensor.is_cpu else SumOnDevice(tensor)


class SumOnDevice(RingfoldWork):
    """The handle of a sum enqueued on the stream that is current at its creation."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__([], [tensor], device=tensor.device)
        self._is_there = torch.accelerator.current_stream(tensor.device).record_event()

    def wait(self, timeout: timedelta = NO_LIMIT) -> bool:
        """Make the current stream wait for the sum."""
        torch.accelerator.current_stream(self._device).wait_event(self._is_there)
        return super().wait(timeout)

    def is_completed(self) -> bool:
        """Whether the device has completed the sum."""
        return bool(self._is_there.query())
