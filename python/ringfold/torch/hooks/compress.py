"""Gradients that travel in 16 bits.

Like torch's own hooks of this kind, but the gradient is divided by the number of ranks before it is rounded. So the sum of what travels is the mean, and it overflows only where the mean itself does. The names differ
from torch's because DDP refuses torch's names for bfloat16 wherever there is no NCCL.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

Hook = Callable[[Any, dist.GradBucket], torch.futures.Future[torch.Tensor]]


def fp16_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average gradients in float16. `state` is the process group, or `None` for the default one.

    11 significant bits; what is below 6e-8 after the division vanishes, and a mean above 65504 is infinite.
    """
    return average_in(torch.float16, state, bucket)


def bf16_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Average gradients in bfloat16: the range of float32, 8 significant bits. `state` is as for `fp16_hook`."""
    return average_in(torch.bfloat16, state, bucket)


def fp16_wrapper(hook: Hook) -> Hook:
    """Have `hook` work on float16 gradients: `model.register_comm_hook(state, fp16_wrapper(topk_hook))`.

    The gradients are rounded as they are, before `hook` divides: one above 65504 is infinite. bfloat16 has no such bound.
    """
    return rounded_to(torch.float16, hook)


def bf16_wrapper(hook: Hook) -> Hook:
    """Have `hook` work on bfloat16 gradients."""
    return rounded_to(torch.bfloat16, hook)


def average_in(dtype: torch.dtype, group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The mean of a bucket over the ranks, which travels as `dtype`."""
    buffer = bucket.buffer()
    # Two passes in one type each: with a result of another type torch would make a third tensor.
    small = buffer.div_(dist.get_world_size(group)).to(dtype)

    def widen(_: Any) -> torch.Tensor:
        return buffer.copy_(small)

    return dist.all_reduce(small, group=group, async_op=True).get_future().then(widen)


def rounded_to(dtype: torch.dtype, hook: Hook) -> Hook:
    """A hook that rounds the bucket to `dtype` for `hook`, and widens what that returns."""

    def rounded_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer()
        bucket.set_buffer(buffer.to(dtype))

        def widen(done: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
            return buffer.copy_(done.value())

        return hook(state, bucket).then(widen)

    return rounded_hook
