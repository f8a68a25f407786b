"""Hooks whose callbacks issue collectives, one bucket at a time.

Such a hook (torch's `powerSGD_hook`) issues its first collective when the bucket is ready, and the
others in its callbacks. With several buckets, a callback of one and the start of the next race.
Each rank may then issue the calls in a different order, and calls of one group in different orders
do not match, on any backend.
"""

from functools import wraps
from typing import Any

import torch
import torch.distributed as dist

from ringfold.torch.hooks.compress import Hook


def in_order(hook: Hook) -> Hook:
    """Make `hook` finish a bucket before the next one begins:
    `register_comm_hook(state, in_order(powerSGD_hook))`.

    All ranks then issue the collectives of its callbacks in the same order, and communication no
    longer overlaps with the backward pass.
    """

    @wraps(hook)
    def ordered_hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future = hook(state, bucket)
        future.wait()
        return future

    return ordered_hook
