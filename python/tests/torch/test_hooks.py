"""DDP communication hooks: replicas stay identical, and no gradient is lost."""

import math
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hook_training import BUCKET_CAP_MB, HOOKS, Crossed, Watched, batch, flat, train, weights
from ringfold.torch import hooks
from torch import nn
from torch.nn.parallel import DistributedDataParallel


# Gradients as views of the buckets are the harder case; only some hooks are also tested without.
@pytest.mark.parametrize(
    ("hook", "views"),
    [*((hook, True) for hook in HOOKS), ("bf16", False), ("delayed variance", False)],
)
def test_replicas_stay_identical_and_learn(
    ranks: Any, backend: str, hook: str, views: bool
) -> None:
    found = ranks(train, 3, backend, hook=hook, steps=60, gradient_as_bucket_view=views).results()
    assert all(values == found[0][0] for values, _ in found)
    # Guessing has ln 4 = 1.386; training without a hook reaches 0.35.
    assert found[0][1] < 0.7


@pytest.mark.parametrize(
    ("hook", "tolerance"),
    [("fp16", 2e-3), ("bf16", 2e-2), ("fp16 of torch's", 2e-3), ("top-k of everything", 1e-6)],
)
def test_rounded_training_is_close_to_exact_training(
    ranks: Any, backend: str, hook: str, tolerance: float
) -> None:
    (exact, _), (rounded, _) = (
        ranks(train, 2, backend, hook=name, steps=20).result(0) for name in ("none", hook)
    )
    assert torch.allclose(torch.tensor(rounded), torch.tensor(exact), rtol=0, atol=tolerance)


def train_in_half(hook: str) -> Any:
    torch.manual_seed(1)
    ddp = DistributedDataParallel(Crossed().bfloat16(), bucket_cap_mb=BUCKET_CAP_MB / 2)
    state, function = HOOKS[hook](ddp)
    ddp.register_comm_hook(state, function)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.2)
    losses = []
    for step in range(40):
        optimizer.zero_grad()
        x, labels = batch(step % 4)
        loss = nn.functional.cross_entropy(ddp(x.bfloat16()).float(), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    kept = {
        part.dtype for parts in state.state_dict()["parameters"].values() for part in parts.values()
    }
    assert kept == ({torch.bfloat16} if isinstance(state, hooks.DelayedState) else {torch.float32})
    return weights(ddp), sum(losses[-4:]) / sum(losses[:4])


@pytest.mark.parametrize(
    "hook", ["variance", "variance in powers", "variance over a threshold", "top-k", "delayed"]
)
def test_gradients_of_16_bits_are_kept_in_32(ranks: Any, backend: str, hook: str) -> None:
    (first, ratio), (second, _) = ranks(train_in_half, 2, backend, hook=hook).results()
    assert first == second and ratio < 0.8


def large_mean(hook: str) -> Any:
    ddp = DistributedDataParallel(nn.Linear(1, 1, bias=False))
    ddp.register_comm_hook(*HOOKS[hook](ddp))
    (ddp(torch.ones(1, 1)) * 60000.0).sum().backward()
    return float(ddp.module.weight.grad)


def test_half_precision_holds_a_mean_whose_sum_it_could_not_hold(ranks: Any, backend: str) -> None:
    assert ranks(large_mean, 3, backend, hook="fp16").results() == [60000.0] * 3


class Integers(nn.Module):  # type: ignore[misc]
    """Model with gradients set by the test: small integers, so that sums are exact."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.zeros(size)) for size in (300, 500, 40)])

    def forward(self, factors: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack(
            [(part * factor).sum() for part, factor in zip(self.parts, factors, strict=True)]
        ).sum()


def account_for_all(hook: str, steps: int) -> None:
    torch.manual_seed(1)
    ddp = DistributedDataParallel(Integers(), bucket_cap_mb=BUCKET_CAP_MB)
    state, function = HOOKS[hook](ddp)
    if isinstance(state, hooks.VarianceState) and state.threshold is not None:
        state.threshold = 2.0
    watched = Watched(function)
    ddp.register_comm_hook(state, watched)
    generator = torch.Generator().manual_seed(dist.get_rank())
    given = torch.zeros(840, dtype=torch.float64)
    received = torch.zeros(840, dtype=torch.float64)
    for _ in range(steps):
        factors = [
            torch.randint(-8, 9, part.shape, generator=generator).float()
            for part in ddp.module.parts
        ]
        ddp.zero_grad()
        ddp(factors).backward()
        given += flat(factors)
        received += flat(part.grad for part in ddp.module.parts)
    assert watched.saw_a_rebuild()
    kept = flat(part["residual"] for _, part in sorted(state.state_dict()["parameters"].items()))
    difference = given - kept
    assert kept.abs().max() > 0
    dist.all_reduce(difference)
    assert torch.equal(difference, received * dist.get_world_size())


@pytest.mark.parametrize(
    "hook", ["variance", "variance in powers", "variance over a threshold", "top-k"]
)
def test_what_was_sent_and_what_is_kept_is_all_there_was(
    ranks: Any, backend: str, hook: str
) -> None:
    # With two ranks, the mean is exact, too. DDP rebuilds its buckets in the meantime.
    ranks(account_for_all, 2, backend, hook=hook, steps=7).results()


def variance_step_by_step(alpha: float, zeta: float, threshold: float | None) -> None:
    torch.manual_seed(1)
    ddp = DistributedDataParallel(nn.Linear(5, 3, bias=False))
    ddp.register_comm_hook(
        hooks.VarianceState(ddp, alpha, zeta, threshold=threshold), hooks.variance_hook
    )
    world_size = dist.get_world_size()
    r = [[0.0] * 15 for _ in range(world_size)]
    v = [[0.0] * 15 for _ in range(world_size)]
    skipped = 0
    for step in range(30):
        expected = [0.0] * 15
        for rank in range(world_size):
            # For every output, the gradient of the sum of outputs is the sum of the inputs.
            gradient = (batch(step, rank)[0][:, :5].sum(dim=0).repeat(3)).tolist()
            for i, g in enumerate(gradient):
                r[rank][i] += g
                v[rank][i] += g * g
                if r[rank][i] ** 2 > alpha * v[rank][i] and (
                    threshold is None or abs(r[rank][i]) > threshold
                ):
                    sent = r[rank][i] if threshold is None else math.copysign(threshold, r[rank][i])
                    v[rank][i] = (
                        0.0
                        if threshold is None
                        else max(v[rank][i] - 2 * abs(r[rank][i]) * threshold + threshold**2, 0)
                    )
                    r[rank][i] -= sent
                    expected[i] += sent / world_size
                else:
                    skipped += 1
                    v[rank][i] *= zeta
        ddp.zero_grad()
        ddp(batch(step)[0][:, :5]).sum().backward()
        assert torch.allclose(ddp.module.weight.grad.view(-1), torch.tensor(expected), atol=1e-4), (
            step
        )
    assert 50 < skipped < 30 * 15 * world_size - 50


@pytest.mark.parametrize("threshold", [None, 1.5])
def test_variance_follows_the_papers_rule(
    ranks: Any, backend: str, threshold: float | None
) -> None:
    ranks(variance_step_by_step, 2, backend, alpha=1.3, zeta=0.9, threshold=threshold).results()


def infinite_gradient(hook: str) -> Any:
    ddp = DistributedDataParallel(nn.Linear(4, 4, bias=False))
    ddp.register_comm_hook(*HOOKS[hook](ddp))
    found = []
    for value in (math.inf, 1.0, math.nan, 1.0):
        x = torch.ones(1, 4)
        # A single element on one rank.
        x[0, 1] = value if dist.get_rank() == 1 else 1.0
        ddp.zero_grad()
        ddp(x).sum().backward()
        found.append(bool(ddp.module.weight.grad.isfinite().all()))
    return found


@pytest.mark.parametrize(
    "hook", ["variance", "variance in powers", "variance over a threshold", "top-k"]
)
def test_what_is_not_finite_is_seen_by_all_at_once_and_not_kept(
    ranks: Any, backend: str, hook: str
) -> None:
    assert (
        ranks(infinite_gradient, 2, backend, hook=hook).results()
        == [[False, True, False, True]] * 2
    )
