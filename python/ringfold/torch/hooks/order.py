"""Hooks whose callbacks make collectives, one bucket at a time.

Such a hook (torch's `powerSGD_hook`) makes its first collective when the bucket is ready, and the others in callbacks of
that. With several buckets a callback of one and the start of the next race, each rank may make the calls in another order,
and calls of the same group that come in different orders do not belong together, on any backend.
"""

from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from ringfold.torch.hooks.compress import Hook


def in_order(hook: Hook) -> Hook:
    """Have `hook` finish a bucket before the next one begins: `register_comm_hook(state, in_order(powerSGD_hook))`.

    All ranks then make the collectives of its callbacks in the same order, and communication no longer overlaps with the
    backward pass.
    """

    @wraps(hook)
    def ordered_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future = hook(state, bucket)
        future.wait()
        return future

    return ordered_hook
