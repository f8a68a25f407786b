"""Communication hooks for DistributedDataParallel, on any process group.

    from ringfold.torch import hooks

    model = DistributedDataParallel(module)
    state = hooks.VarianceState(model, alpha=1.5)
    model.register_comm_hook(state, hooks.variance_hook)

`docs/guides/hooks.md` describes the computation and the traffic of each hook, and when it wins.
"""

from ringfold.torch.hooks.compress import (
    CompressState,
    bf16_hook,
    bf16_wrapper,
    fp16_hook,
    fp16_wrapper,
)
from ringfold.torch.hooks.delayed import DelayedOptimizer, DelayedState, delayed_hook
from ringfold.torch.hooks.exchange import Traffic
from ringfold.torch.hooks.order import in_order
from ringfold.torch.hooks.state import HookState
from ringfold.torch.hooks.topk import TopKState, topk_hook
from ringfold.torch.hooks.variance import VarianceState, variance_hook

__all__ = [
    "CompressState",
    "DelayedOptimizer",
    "DelayedState",
    "HookState",
    "TopKState",
    "Traffic",
    "VarianceState",
    "bf16_hook",
    "bf16_wrapper",
    "delayed_hook",
    "fp16_hook",
    "fp16_wrapper",
    "in_order",
    "topk_hook",
    "variance_hook",
]
