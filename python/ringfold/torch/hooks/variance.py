"""Variance-based sparsification: an element is sent once its sum is large compared to its noise.

Tsuzuku, Imachi and Akiba, "Variance-based Gradient Compression for Efficient Distributed Deep
Learning", 2018 (arXiv 1802.06058). For every element, on every rank: r is the sum of gradients that
were not sent, v that of their squares.

    r += g;  v += g^2;  if r^2 > alpha v:  send r;  r = v = 0;  otherwise:  v *= zeta

A gradient that changes its sign from step to step waits until its sum is significant; none of it is
lost meanwhile. The paper squares every sample's gradient, which DDP does not provide: here the
local mini-batch counts as one sample.

With a threshold t (the paper's hybrid with Strom 2015), an element must exceed that too, and the
value sent is t with its sign:

    if r^2 > alpha v and |r| > t:  send sign(r) t;  v = max(v - 2 |r| t + t^2, 0);  r -= sign(r) t
"""

import torch
import torch.distributed as dist

from ringfold.errors import InvalidArgumentError
from ringfold.torch.hooks.buckets import Ledger
from ringfold.torch.hooks.exchange import Traffic, mean_of_lists, sizes_of_all
from ringfold.torch.hooks.state import HookState
from ringfold.torch.hooks.topk import subtract
from ringfold.torch.hooks.wire import Code, Exact, Powers, Sent, Signs

WIRES = ("exact", "powers")


class VarianceState(HookState):
    """The state of `variance_hook`. It differs between ranks: every rank saves and loads its own.

    alpha: the required ratio of the square of the sum to the sum of squares; the paper tries 1 to
        2. A higher alpha sends less.
    zeta: the decay of the sum of squares in a step that does not send; the paper has 0.999.
    wire: `exact` sends 32 bits of index and the value in the gradient's own type; `powers` sends
        the paper's words of 32 bits, with values rounded to powers of two. The rounding error stays
        in the residual. The same on all ranks.
    threshold: the hybrid's threshold; a word of 32 bits per element. The same on all ranks.
    """

    settings = ("alpha", "zeta", "wire", "threshold")

    def __init__(
        self,
        model: torch.nn.Module,
        alpha: float = 1.5,
        zeta: float = 0.999,
        wire: str = "exact",
        threshold: float | None = None,
        group: object = None,
    ) -> None:
        if wire not in WIRES:
            raise InvalidArgumentError(f"unknown wire `{wire}`; use one of {', '.join(WIRES)}")
        if threshold is not None and (threshold <= 0 or wire != "exact"):
            raise InvalidArgumentError(
                "the threshold must be above 0, and cannot be combined with another wire format"
            )
        if alpha < 0 or not 0 <= zeta <= 1:
            raise InvalidArgumentError(
                f"alpha {alpha} is negative, or zeta {zeta} is not from 0 to 1"
            )
        self.alpha = alpha
        self.zeta = zeta
        self.wire = wire
        self.threshold = threshold
        super().__init__(model, group)

    def _begin(self) -> None:
        self.ledger = Ledger("residual", "variance")
        self.traffic = Traffic()

    @property
    def code(self) -> Code:
        """The encoding of elements."""
        if self.threshold is not None:
            return Signs(self.threshold)
        return Powers() if self.wire == "powers" else Exact()


def variance_hook(
    state: VarianceState, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """Send the elements that exceed their noise, and keep the others.

    `docs/explanation/hooks.md` has the formula.
    """
    state.require_model()
    buffer = bucket.buffer()
    layout = state.parameters.layout(bucket)
    residual, variance = state.ledger.flat(layout, buffer)
    gradient = buffer.to(residual.dtype)
    residual += gradient
    variance.addcmul_(gradient, gradient)
    code = state.code
    # The gradient's buffer is reused for intermediate values, and finally for the result: large new
    # tensors cost more.
    indices = clear_elements(state, residual, variance, gradient)
    sent = code.encode(indices, residual[indices], layout, buffer.dtype)
    settle(state, sent, residual, variance)
    state.traffic.count(sent, buffer)
    sizes = sizes_of_all(sent.payload, state.world_size, state.group)
    return mean_of_lists(sent, sizes, code, layout, buffer, state.group)


def clear_elements(
    state: VarianceState, residual: torch.Tensor, variance: torch.Tensor, scratch: torch.Tensor
) -> torch.Tensor:
    """The indices of the elements to send; `scratch` is overwritten."""
    clear = torch.mul(residual, residual, out=scratch).sub_(variance, alpha=state.alpha) > 0
    if state.threshold is not None:
        clear &= torch.abs(residual, out=scratch) > state.threshold
    # No comparison selects non-finite values, and they would stay forever. The sum detects them
    # cheaply.
    if not variance.sum().isfinite():
        clear |= ~variance.isfinite()
    return clear.nonzero().view(-1)


def settle(
    state: VarianceState, sent: Sent, residual: torch.Tensor, variance: torch.Tensor
) -> None:
    """Subtract the sent values from the residual, and their effect from the sum of squares; decay
    the other sums of squares.
    """
    left = variance.new_zeros(sent.indices.shape)
    if state.threshold is not None:
        excess = state.threshold**2 - 2 * residual[sent.indices].abs() * state.threshold
        left = (variance[sent.indices] + excess).clamp_(min=0).nan_to_num_(nan=0.0, posinf=0.0)
    variance *= state.zeta
    variance[sent.indices] = left
    subtract(residual, sent.indices, sent.values)
