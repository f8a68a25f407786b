"""Top-k sparsification with error feedback.

Every step adds the gradient to the residual, e += g; the k elements of the bucket with the largest
magnitude are sent and removed from e. Every rank's list has the same length, so one collective
suffices, which runs during backward. (Aji and Heafield 2017; error feedback after Seide et al.
2014.)
"""

import math

import torch
import torch.distributed as dist

from ringfold.errors import InvalidArgumentError
from ringfold.torch.hooks.buckets import Ledger
from ringfold.torch.hooks.exchange import Traffic, mean_of_lists
from ringfold.torch.hooks.state import HookState
from ringfold.torch.hooks.wire import Exact


# The sampling stride, and the margin of elements taken from the sample: a factor and a constant.
SAMPLE_STRIDE = 61
SAMPLE_MARGIN = 2
SAMPLE_MIN = 50


class TopKState(HookState):
    """The state of `topk_hook`. It differs between ranks: every rank saves and loads its own.

    density: the fraction of each bucket that is sent, above 0 and at most 1, the same on all ranks.
        It may be set between steps, as in a warm-up that begins with 1.
    """

    settings = ("density",)

    def __init__(self, model: torch.nn.Module, density: float = 0.01, group: object = None) -> None:
        if not 0 < density <= 1:
            raise InvalidArgumentError(f"density {density} is not above 0 and at most 1")
        self.density = density
        super().__init__(model, group)

    def _begin(self) -> None:
        self.ledger = Ledger("residual")
        self.traffic = Traffic()


def topk_hook(state: TopKState, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Send the largest elements of gradient plus residual, and keep the others.

    `docs/explanation/hooks.md` has the formula.
    """
    state.require_model()
    buffer = bucket.buffer()
    layout = state.parameters.layout(bucket)
    (residual,) = state.ledger.flat(layout, buffer)
    residual += buffer
    count = math.ceil(state.density * buffer.numel())
    # The gradient's own buffer holds the magnitudes: a large new tensor costs more than the
    # computation.
    magnitudes = (
        torch.abs(residual, out=buffer) if buffer.dtype == residual.dtype else residual.abs()
    )
    indices = greatest(magnitudes, count)
    sent = Exact().encode(indices, residual[indices], layout, buffer.dtype)
    subtract(residual, sent.indices, sent.values)
    # Non-finite values count as the largest. All ranks see some of them now; the rest would only
    # spoil later steps.
    if not sent.values.isfinite().all():
        residual.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
    state.traffic.count(sent, buffer)
    sizes = [sent.payload.numel()] * state.world_size
    return mean_of_lists(sent, sizes, Exact(), layout, buffer, state.group)


def greatest(magnitudes: torch.Tensor, count: int) -> torch.Tensor:
    """The indices of the `count` largest; NaN counts as the largest.

    Selecting among all elements is slow. A sample estimates the smallest of the largest; only
    elements not below the estimate are then candidates, unless the estimate was wrong.
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
    """Subtract the sent values from the residual; non-finite values are removed entirely."""
    residual[indices] = (residual[indices] - sent).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
