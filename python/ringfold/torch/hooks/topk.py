"""Top-k sparsification with error feedback.

Every step adds the gradient to what was not sent yet, e += g; the k elements of the bucket that are greatest in magnitude
are sent and leave e. Every rank's list is equally long, so that one collective does, which runs while backward goes on.
(Aji and Heafield 2017; error feedback after Seide et al. 2014.)
"""

import math

import torch
import torch.distributed as dist

from ringfold.errors import InvalidArgument
from ringfold.torch.hooks.buckets import Ledger
from ringfold.torch.hooks.exchange import Traffic, mean_of_lists
from ringfold.torch.hooks.state import HookState
from ringfold.torch.hooks.wire import Exact


# Every so many elements one is looked at; so many times as many as must be found, and so many more, are taken from those.
SAMPLE_STRIDE = 61
SAMPLE_MARGIN = 2
SAMPLE_MIN = 50


class TopKState(HookState):
    """The state of `topk_hook`. It is this rank's own: every rank saves and loads its own.

    density: the share of each bucket that is sent, above 0 and at most 1, the same on all ranks. It may be set between steps,
        as in a warm-up that begins with everything.
    """

    settings = ("density",)

    def __init__(self, model: torch.nn.Module, density: float = 0.01, group: object = None) -> None:
        if not 0 < density <= 1:
            raise InvalidArgument(f"density {density} is not above 0 and at most 1")
        self.density = density
        super().__init__(model, group)

    def _begin(self) -> None:
        self.ledger = Ledger("residual")
        self.traffic = Traffic()


def topk_hook(state: TopKState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Send the greatest elements of gradient and residual, keep the others. `docs/hooks.md` has the formula."""
    state.require_model()
    buffer = bucket.buffer()
    layout = state.parameters.layout(bucket)
    (residual,) = state.ledger.flat(layout, buffer)
    residual += buffer
    count = math.ceil(state.density * buffer.numel())
    # The gradient's own buffer takes the magnitudes: a large new tensor costs more than the calculation.
    magnitudes = (
        torch.abs(residual, out=buffer) if buffer.dtype == residual.dtype else residual.abs()
    )
    indices = greatest(magnitudes, count)
    sent = Exact().encode(indices, residual[indices], layout, buffer.dtype)
    subtract(residual, sent.indices, sent.values)
    # What is not finite counts as the greatest. All ranks see some of it now; the rest would only spoil steps to come.
    if not sent.values.isfinite().all():
        residual.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    state.traffic.count(sent, buffer)
    sizes = [sent.payload.numel()] * state.world_size
    return mean_of_lists(sent, sizes, Exact(), layout, buffer, state.group)


def greatest(magnitudes: torch.Tensor, count: int) -> torch.Tensor:
    """The indices of the `count` greatest, of which what is not a number is the greatest.

    To select among all of them is slow. A sample tells where about the last of the greatest is; the selection is then among
    what is not below, unless the sample was off.
    """
    sample = magnitudes[::SAMPLE_STRIDE]
    sampled = SAMPLE_MARGIN * count // SAMPLE_STRIDE + SAMPLE_MIN
    if sampled < sample.numel():
        floor = sample.topk(sampled).values[-1]
        candidates = (~(magnitudes < floor)).nonzero().view(-1)
        if candidates.numel() >= count:
            return candidates[magnitudes[candidates].topk(count, sorted=False).indices]
    return magnitudes.topk(count, sorted=False).indices


def subtract(residual: torch.Tensor, indices: torch.Tensor, sent: torch.Tensor) -> None:
    """Take from the residual what was sent; nothing is left of what is not a finite number."""
    residual[indices] = (residual[indices] - sent).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
