"""Gradients sent in 16 bits.

Like torch's own hooks of this kind, but the gradient is divided by the number of ranks before it is
rounded. The sum of the data sent is thus the mean, and overflows only if the mean itself does. The
names differ from torch's because DDP refuses torch's names for bfloat16 without NCCL.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

Hook = Callable[[Any, dist.GradBucket], torch.futures.Future[torch.Tensor]]


class CompressState:
    """A state for `fp16_hook` and `bf16_hook` that keeps their 16-bit buffers between steps.

    group: the process group; by default the default group. Allocating large buckets is slow, and a
        backend such as ringfold registers permanent buffers. No gradients are kept, so checkpoints
        do not need this state.
    """

    def __init__(self, group: Any = None) -> None:
        self.group = group
        self._free: dict[tuple[torch.dtype, torch.device, int], list[torch.Tensor]] = {}

    def take(self, like: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """An unused buffer; return it with `give_back`. Behind `delayed_hook`, a bucket may use
        more than one buffer at a time.
        """
        free = self._free.setdefault((dtype, like.device, like.numel()), [])
        return free.pop() if free else torch.empty_like(like, dtype=dtype)

    def give_back(self, buffer: torch.Tensor) -> None:
        """Return a buffer from `take` for reuse."""
        self._free[buffer.dtype, buffer.device, buffer.numel()].append(buffer)

    def __getstate__(self) -> dict[str, Any]:
        return {"group": None, "_free": {}}


def fp16_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average gradients in float16. `state` is a `CompressState`, or a process group, or `None` for
    the default group.

    11 significant bits; values below 6e-8 after the division become zero, and a mean above 65504
    infinite.
    """
    return average_in(torch.float16, state, bucket)


def bf16_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average gradients in bfloat16: the range of float32, 8 significant bits. `state` is as for
    `fp16_hook`.
    """
    return average_in(torch.bfloat16, state, bucket)


def fp16_wrapper(hook: Hook) -> Hook:
    """Make `hook` work on float16 gradients:
    `model.register_comm_hook(state, fp16_wrapper(topk_hook))`.

    The gradients are rounded before `hook` divides: one above 65504 becomes infinite. bfloat16 has
    no such limit.
    """
    return rounded_to(torch.float16, hook)


def bf16_wrapper(hook: Hook) -> Hook:
    """Make `hook` work on bfloat16 gradients."""
    return rounded_to(torch.bfloat16, hook)


def average_in(
    dtype: torch.dtype, state: Any, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """The mean of a bucket over the ranks, sent as `dtype`."""
    state = state if isinstance(state, CompressState) else CompressState(state)
    buffer = bucket.buffer()
    # Two passes in one type each: with a result of another type, torch would allocate a third
    # tensor.
    small = state.take(buffer, dtype).copy_(buffer.div_(dist.get_world_size(state.group)))

    def widen(done: Any) -> torch.Tensor:
        # Raises the error; the buffer is then not reused.
        done.value()
        buffer.copy_(small)
        state.give_back(small)
        return buffer

    return dist.all_reduce(small, group=state.group, async_op=True).get_future().then(widen)


def rounded_to(dtype: torch.dtype, hook: Hook) -> Hook:
    """A hook that rounds the bucket to `dtype` for `hook`, and widens the result."""

    def rounded_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        bucket.set_buffer(buffer.to(dtype))

        def widen(done: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            return buffer.copy_(done.value())

        return hook(state, bucket).then(widen)

    return rounded_hook
