"""DDP communication hooks: replicas stay identical, nothing is lost, state survives bucket rebuilds and checkpoints."""

import copy
import io
import math
import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from ringfold.errors import InvalidArgument
from ringfold.torch import hooks

FEATURES = 12
CLASSES = 4
# So small that the network below has several buckets, and others after DDP has rebuilt them.
BUCKET_CAP_MB = 0.002


class Crossed(nn.Module):  # type: ignore[misc]
    """Layers that are used in another order than they are registered in, so that DDP's rebuilt buckets differ."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(24, CLASSES)
        self.first = nn.Linear(FEATURES, 32)
        self.scale = nn.Parameter(torch.ones(24))
        self.second = nn.Linear(32, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tanh(self.second(torch.tanh(self.first(x))))
        result: torch.Tensor = self.last(hidden * self.scale)
        return result


def model(**options: Any) -> DistributedDataParallel:
    """The same on all ranks and in all runs."""
    torch.manual_seed(1)
    return DistributedDataParallel(Crossed(), bucket_cap_mb=BUCKET_CAP_MB, **options)


def batch(step: int, rank: int | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """A step's samples of one rank."""
    generator = torch.Generator().manual_seed(1000 * step + (dist.get_rank() if rank is None else rank))
    x = torch.randn(16, FEATURES, generator=generator)
    return x, (x[:, :CLASSES] + x[:, CLASSES : 2 * CLASSES]).argmax(dim=1)


def loss_of(network: nn.Module, step: int, rank: int | None = None) -> torch.Tensor:
    x, labels = batch(step, rank)
    return nn.functional.cross_entropy(network(x), labels)


def flat(tensors: Any) -> torch.Tensor:
    """All elements in one list of 64-bit numbers."""
    return torch.cat([tensor.detach().to(torch.float64).reshape(-1) for tensor in tensors])


def weights(network: nn.Module) -> list[float]:
    values: list[float] = flat(network.parameters()).tolist()
    return values


class Watched:
    """A hook that notes which parameters are together in a bucket in each step."""

    def __init__(self, hook: Any) -> None:
        self.hook = hook
        self.__name__ = self.__qualname__ = "watched"
        self.steps: list[list[tuple[int, ...]]] = []

    def __call__(self, state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if bucket.index() == 0:
            self.steps.append([])
        self.steps[-1].append(tuple(id(parameter) for parameter in bucket.parameters()))
        return self.hook(state, bucket)

    def saw_a_rebuild(self) -> bool:
        """Whether there were others from the second step on, and several of them. (Before, DDP has but one.)"""
        first, *others = self.steps
        return len(others[0]) > 1 and all(other == others[0] != first for other in others)


# By name: what to register, given the model. The learning rule of the delayed hook is tested on its own.
HOOKS: dict[str, Any] = {
    "none": lambda ddp: (None, allreduce_hook),
    "fp16": lambda ddp: (None, hooks.fp16_hook),
    "bf16": lambda ddp: (None, hooks.bf16_hook),
    "fp16 of torch's": lambda ddp: (None, hooks.fp16_wrapper(allreduce_hook)),
    "bf16 of top-k": lambda ddp: (hooks.TopKState(ddp, density=0.1), hooks.bf16_wrapper(hooks.topk_hook)),
    "variance": lambda ddp: (hooks.VarianceState(ddp, alpha=1.0), hooks.variance_hook),
    "variance in powers": lambda ddp: (hooks.VarianceState(ddp, alpha=1.0, wire="powers"), hooks.variance_hook),
    "variance over a threshold": lambda ddp: (hooks.VarianceState(ddp, alpha=1.0, threshold=0.01), hooks.variance_hook),
    "top-k": lambda ddp: (hooks.TopKState(ddp, density=0.1), hooks.topk_hook),
    "top-k of everything": lambda ddp: (hooks.TopKState(ddp, density=1.0), hooks.topk_hook),
    "delayed": lambda ddp: (hooks.DelayedState(ddp), hooks.delayed_hook),
    "bf16 with a state": lambda ddp: (hooks.CompressState(), hooks.bf16_hook),
    "delayed bf16": lambda ddp: (
        hooks.DelayedState(ddp, hooks.bf16_hook, hooks.CompressState(ddp.process_group)),
        hooks.delayed_hook,
    ),
    "delayed variance": lambda ddp: (
        hooks.DelayedState(ddp, hooks.variance_hook, hooks.VarianceState(ddp, alpha=1.0)),
        hooks.delayed_hook,
    ),
}


def train(hook: str, steps: int, **options: Any) -> Any:
    """Train, and give the weights and the final loss over all ranks' samples."""
    ddp = model(**options)
    state, function = HOOKS[hook](ddp)
    ddp.register_comm_hook(state, function)
    optimizer: Any = torch.optim.SGD(ddp.parameters(), lr=0.2, momentum=0.5)
    if isinstance(state, hooks.DelayedState):
        optimizer = hooks.DelayedOptimizer(optimizer, state)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(ddp, step % 4).backward()
        optimizer.step()
    if isinstance(state, hooks.DelayedState):
        assert optimizer.flush()
    with torch.no_grad():
        losses = [float(loss_of(ddp.module, step, rank)) for step in range(4) for rank in range(dist.get_world_size())]
    return weights(ddp), sum(losses) / len(losses)


# Gradients as views of the buckets are what can go wrong; the other way need not be tried with everything.
@pytest.mark.parametrize(("hook", "views"), [*((hook, True) for hook in HOOKS), ("bf16", False), ("delayed variance", False)])
def test_replicas_stay_identical_and_learn(ranks: Any, backend: str, hook: str, views: bool) -> None:
    found = ranks(train, 3, backend, hook=hook, steps=60, gradient_as_bucket_view=views).results()
    assert all(values == found[0][0] for values, _ in found)
    # Guessing has ln 4 = 1.386; without a hook it is 0.35.
    assert found[0][1] < 0.7


@pytest.mark.parametrize(
    ("hook", "tolerance"), [("fp16", 2e-3), ("bf16", 2e-2), ("fp16 of torch's", 2e-3), ("top-k of everything", 1e-6)]
)
def test_rounded_training_is_close_to_exact_training(ranks: Any, backend: str, hook: str, tolerance: float) -> None:
    (exact, _), (rounded, _) = (ranks(train, 2, backend, hook=name, steps=20).result(0) for name in ("none", hook))
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
    kept = {part.dtype for parts in state.state_dict()["parameters"].values() for part in parts.values()}
    assert kept == ({torch.bfloat16} if isinstance(state, hooks.DelayedState) else {torch.float32})
    return weights(ddp), sum(losses[-4:]) / sum(losses[:4])


@pytest.mark.parametrize("hook", ["variance", "variance in powers", "variance over a threshold", "top-k", "delayed"])
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
    """Its gradients are whole numbers that the test sets, so that sums are exact."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList([nn.Parameter(torch.zeros(size)) for size in (300, 500, 40)])

    def forward(self, factors: list[torch.Tensor]) -> torch.Tensor:
        return torch.stack([(part * factor).sum() for part, factor in zip(self.parts, factors, strict=True)]).sum()


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
        factors = [torch.randint(-8, 9, part.shape, generator=generator).float() for part in ddp.module.parts]
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


@pytest.mark.parametrize("hook", ["variance", "variance in powers", "variance over a threshold", "top-k"])
def test_what_was_sent_and_what_is_kept_is_all_there_was(ranks: Any, backend: str, hook: str) -> None:
    # Two ranks, so that the mean is exact, too. DDP rebuilds its buckets meanwhile.
    ranks(account_for_all, 2, backend, hook=hook, steps=7).results()


def variance_step_by_step(alpha: float, zeta: float, threshold: float | None) -> None:
    torch.manual_seed(1)
    ddp = DistributedDataParallel(nn.Linear(5, 3, bias=False))
    ddp.register_comm_hook(hooks.VarianceState(ddp, alpha, zeta, threshold=threshold), hooks.variance_hook)
    world_size = dist.get_world_size()
    r = [[0.0] * 15 for _ in range(world_size)]
    v = [[0.0] * 15 for _ in range(world_size)]
    skipped = 0
    for step in range(30):
        expected = [0.0] * 15
        for rank in range(world_size):
            # The gradient of the sum of outputs is the sum of the inputs, for every output.
            gradient = (batch(step, rank)[0][:, :5].sum(dim=0).repeat(3)).tolist()
            for i, g in enumerate(gradient):
                r[rank][i] += g
                v[rank][i] += g * g
                if r[rank][i] ** 2 > alpha * v[rank][i] and (threshold is None or abs(r[rank][i]) > threshold):
                    sent = r[rank][i] if threshold is None else math.copysign(threshold, r[rank][i])
                    v[rank][i] = 0.0 if threshold is None else max(v[rank][i] - 2 * abs(r[rank][i]) * threshold + threshold**2, 0)
                    r[rank][i] -= sent
                    expected[i] += sent / world_size
                else:
                    skipped += 1
                    v[rank][i] *= zeta
        ddp.zero_grad()
        ddp(batch(step)[0][:, :5]).sum().backward()
        assert torch.allclose(ddp.module.weight.grad.view(-1), torch.tensor(expected), atol=1e-4), step
    assert 50 < skipped < 30 * 15 * world_size - 50


@pytest.mark.parametrize("threshold", [None, 1.5])
def test_variance_follows_the_papers_rule(ranks: Any, backend: str, threshold: float | None) -> None:
    ranks(variance_step_by_step, 2, backend, alpha=1.3, zeta=0.9, threshold=threshold).results()


def infinite_gradient(hook: str) -> Any:
    ddp = DistributedDataParallel(nn.Linear(4, 4, bias=False))
    ddp.register_comm_hook(*HOOKS[hook](ddp))
    found = []
    for value in (math.inf, 1.0, math.nan, 1.0):
        x = torch.ones(1, 4)
        # One element on one rank.
        x[0, 1] = value if dist.get_rank() == 1 else 1.0
        ddp.zero_grad()
        ddp(x).sum().backward()
        found.append(bool(ddp.module.weight.grad.isfinite().all()))
    return found


@pytest.mark.parametrize("hook", ["variance", "variance in powers", "variance over a threshold", "top-k"])
def test_what_is_not_finite_is_seen_by_all_at_once_and_not_kept(ranks: Any, backend: str, hook: str) -> None:
    assert ranks(infinite_gradient, 2, backend, hook=hook).results() == [[False, True, False, True]] * 2


def delayed_by_hand(steps: int, world_size: int) -> list[float]:
    """The same training in one process: every update uses the gradients of the weights before."""
    torch.manual_seed(1)
    network = Crossed()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.2, momentum=0.5, weight_decay=0.1)
    last: list[torch.Tensor] = []
    for step in range(steps + 1):
        losses = [loss_of(network, step, rank) for rank in range(world_size)]
        fresh = list(torch.autograd.grad(torch.stack(losses).mean(), list(network.parameters())))
        if last:
            for parameter, gradient in zip(network.parameters(), last, strict=True):
                parameter.grad = gradient
            optimizer.step()
        last = fresh
    return weights(network)


def delayed_training(steps: int, **options: Any) -> Any:
    ddp = model(**options)
    state = hooks.DelayedState(ddp)
    watched = Watched(hooks.delayed_hook)
    ddp.register_comm_hook(state, watched)
    optimizer = hooks.DelayedOptimizer(
        torch.optim.SGD(ddp.parameters(), lr=0.4, momentum=0.5, weight_decay=0.1), state
    )
    # Halves the rate at once, and shows that schedulers take the wrapper.
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
    scheduler.step()
    before = weights(ddp)
    for step in range(steps):
        optimizer.zero_grad()
        loss_of(ddp, step).backward()
        optimizer.step()
        assert state.empty == (step == 0)
        assert (weights(ddp) == before) == (step == 0)
    assert watched.saw_a_rebuild()
    assert optimizer.flush() and not optimizer.flush()
    return weights(ddp)


@pytest.mark.parametrize("views", [False, True])
def test_delayed_updates_are_those_of_one_process_that_is_a_step_late(ranks: Any, backend: str, views: bool) -> None:
    found = ranks(delayed_training, 2, backend, steps=6, gradient_as_bucket_view=views).results()
    expected = torch.tensor(delayed_by_hand(6, 2))
    for values in found:
        assert torch.allclose(torch.tensor(values), expected, rtol=0, atol=1e-5)


def resume(hook: str, before: int, after: int) -> None:
    """Training with a break, from a checkpoint with new objects, ends in the same bits as without."""
    ended = []
    for breaks in (False, True):
        ddp = model()
        state, function = HOOKS[hook](ddp)
        ddp.register_comm_hook(state, function)
        optimizer: Any = torch.optim.SGD(ddp.parameters(), lr=0.2, momentum=0.5)
        if isinstance(state, hooks.DelayedState):
            optimizer = hooks.DelayedOptimizer(optimizer, state)
        for step in range(before + after):
            if breaks and step == before:
                file = io.BytesIO()
                torch.save((ddp.module.state_dict(), optimizer.state_dict(), state.state_dict()), file)
                file.seek(0)
                saved = torch.load(file, weights_only=True)
                ddp = model()
                ddp.module.load_state_dict(saved[0])
                state, function = HOOKS[hook](ddp)
                ddp.register_comm_hook(state, function)
                optimizer = torch.optim.SGD(ddp.parameters(), lr=0.2, momentum=0.5)
                if isinstance(state, hooks.DelayedState):
                    optimizer = hooks.DelayedOptimizer(optimizer, state)
                optimizer.load_state_dict(saved[1])
                state.load_state_dict(saved[2])
            optimizer.zero_grad()
            loss_of(ddp, step).backward()
            optimizer.step()
        ended.append(flat(ddp.parameters()))
    assert torch.allclose(*ended, rtol=0, atol=1e-6), float((ended[0] - ended[1]).abs().max())


@pytest.mark.parametrize(
    "hook", ["variance", "variance in powers", "variance over a threshold", "top-k of everything", "delayed"]
)
@pytest.mark.parametrize("before", [1, 4])
def test_a_checkpoint_carries_what_is_kept(ranks: Any, backend: str, hook: str, before: int) -> None:
    # After one step the buckets are about to be rebuilt; the resumed run has the first ones again.
    ranks(resume, 2, backend, hook=hook, before=before, after=5).results()


def copies(hook: str) -> None:
    ddp = model()
    state, function = HOOKS[hook](ddp)
    ddp.register_comm_hook(state, function)
    for step in range(3):
        loss_of(ddp, step).backward()
    saved = state.state_dict()
    for copied in (pickle.loads(pickle.dumps(state)), copy.deepcopy(state)):
        with pytest.raises(InvalidArgument, match="bind"):
            copied.require_model()
        copied.bind(ddp)
        copied.require_model()
        restored = copied.state_dict()
        assert restored["settings"] == saved["settings"]
        for name, parts in saved["parameters"].items():
            assert all(torch.equal(part, restored["parameters"][name][field]) for field, part in parts.items())


@pytest.mark.parametrize("hook", ["variance", "top-k", "delayed"])
def test_a_copied_state_carries_all_but_the_model(ranks: Any, hook: str) -> None:
    ranks(copies, 2, "gloo", hook=hook).results()


def accumulate(hook: str) -> None:
    """Two backward passes, one of them without exchange, are one step on the sum."""
    ddp = model()
    state, function = HOOKS[hook](ddp)
    ddp.register_comm_hook(state, function)
    with ddp.no_sync():
        loss_of(ddp, 0).backward()
    loss_of(ddp, 1).backward()
    found = flat(parameter.grad for parameter in ddp.parameters())
    network = Crossed()
    network.load_state_dict(ddp.module.state_dict())
    for step in (0, 1):
        for rank in range(dist.get_world_size()):
            (loss_of(network, step, rank) / dist.get_world_size()).backward()
    expected = flat(parameter.grad for parameter in network.parameters())
    assert torch.allclose(found, expected, rtol=0, atol=2e-2 if "16" in hook else 1e-6)


@pytest.mark.parametrize("hook", ["bf16", "top-k of everything"])
def test_gradients_accumulate_without_sync(ranks: Any, backend: str, hook: str) -> None:
    ranks(accumulate, 2, backend, hook=hook).results()


def uneven_inputs(hook: str) -> list[float]:
    ddp = model()
    ddp.register_comm_hook(*HOOKS[hook](ddp))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with ddp.join():
        for step in range(3 + 2 * dist.get_rank()):
            optimizer.zero_grad()
            loss_of(ddp, step).backward()
            optimizer.step()
    return weights(ddp)


@pytest.mark.parametrize("hook", ["bf16", "variance", "top-k"])
def test_ranks_that_run_out_of_input_are_waited_for(ranks: Any, backend: str, hook: str) -> None:
    first, second = ranks(uneven_inputs, 2, backend, hook=hook).results()
    assert first == second


def lose_a_peer(hook: str) -> str:
    ddp = model()
    ddp.register_comm_hook(*HOOKS[hook](ddp))
    loss_of(ddp, 0).backward()
    dist.barrier()
    if dist.get_rank() == 1:
        return "gone"
    with pytest.raises(RuntimeError):
        # What is delayed is noticed a step late.
        for step in (1, 2):
            loss_of(ddp, step).backward()
    return "told"


@pytest.mark.parametrize("hook", ["bf16", "variance", "top-k", "top-k of everything", "delayed", "delayed bf16"])
def test_errors_of_the_exchange_come_out_of_backward(ranks: Any, backend: str, hook: str) -> None:
    assert ranks(lose_a_peer, 2, backend, timeout_s=10, hook=hook).results() == ["told", "gone"]


def refuse() -> None:
    ddp = model(find_unused_parameters=True)
    for make in (hooks.DelayedState, hooks.VarianceState, hooks.TopKState):
        with pytest.raises(InvalidArgument, match="find_unused_parameters"):
            make(ddp)
    other = model()
    other.register_comm_hook(hooks.TopKState(Crossed()), hooks.topk_hook)
    # What a hook raises passes through DDP with its type.
    with pytest.raises(InvalidArgument, match="not the model's"):
        loss_of(other, 0).backward()


def test_what_would_lose_gradients_is_refused(ranks: Any) -> None:
    ranks(refuse, 1, "gloo").results()


def test_settings_are_checked() -> None:
    network = Crossed()
    for settings in ({"alpha": -1}, {"zeta": 2}, {"wire": "morse"}, {"threshold": 0}, {"threshold": 1, "wire": "powers"}):
        with pytest.raises(InvalidArgument):
            hooks.VarianceState(network, **settings)
    for density in (0, 1.5):
        with pytest.raises(InvalidArgument):
            hooks.TopKState(network, density)


def test_a_state_of_something_else_is_not_loaded() -> None:
    network = Crossed()
    saved = hooks.VarianceState(network).state_dict()
    with pytest.raises(InvalidArgument, match="TopKState"):
        hooks.TopKState(network).load_state_dict(saved)
    state = hooks.TopKState(network)
    for parameters, message in (
        ({"absent": {"residual": torch.zeros(3)}}, "absent"),
        ({"scale": {"residual": torch.zeros(3)}}, "does not fit"),
        ({"scale": {"variance": torch.zeros(24)}}, "does not fit"),
    ):
        with pytest.raises(InvalidArgument, match=message):
            state.load_state_dict({"settings": {"density": 0.5}, "parameters": parameters})
        assert state.state_dict() == {"settings": {"density": 0.01}, "parameters": {}}
