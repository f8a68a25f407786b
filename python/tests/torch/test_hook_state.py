"""State of DDP communication hooks: it survives bucket rebuilds, checkpoints, copies and errors."""

import copy
import io
import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hook_training import HOOKS, Crossed, Watched, flat, loss_of, model, weights
from ringfold.errors import InvalidArgumentError
from ringfold.torch import hooks


def delayed_by_hand(steps: int, world_size: int) -> list[float]:
    """Train in one process; every update uses the gradients of the previous weights."""
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
    # Halves the rate at once, and shows that schedulers accept the wrapper.
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
def test_delayed_updates_are_those_of_one_process_that_is_a_step_late(
    ranks: Any, backend: str, views: bool
) -> None:
    found = ranks(delayed_training, 2, backend, steps=6, gradient_as_bucket_view=views).results()
    expected = torch.tensor(delayed_by_hand(6, 2))
    for values in found:
        assert torch.allclose(torch.tensor(values), expected, rtol=0, atol=1e-5)


def resume(hook: str, before: int, after: int) -> None:
    """Check that training resumed from a checkpoint ends with the weights of unbroken training."""
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
                torch.save(
                    (ddp.module.state_dict(), optimizer.state_dict(), state.state_dict()), file
                )
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
    "hook",
    [
        "variance",
        "variance in powers",
        "variance over a threshold",
        "top-k of everything",
        "delayed",
    ],
)
@pytest.mark.parametrize("before", [1, 4])
def test_a_checkpoint_carries_what_is_kept(
    ranks: Any, backend: str, hook: str, before: int
) -> None:
    # After one step the buckets are about to be rebuilt; the resumed run starts with the first
    # buckets again.
    ranks(resume, 2, backend, hook=hook, before=before, after=5).results()


def copies(hook: str) -> None:
    ddp = model()
    state, function = HOOKS[hook](ddp)
    ddp.register_comm_hook(state, function)
    for step in range(3):
        loss_of(ddp, step).backward()
    saved = state.state_dict()
    for copied in (pickle.loads(pickle.dumps(state)), copy.deepcopy(state)):
        with pytest.raises(InvalidArgumentError, match="bind"):
            copied.require_model()
        copied.bind(ddp)
        copied.require_model()
        restored = copied.state_dict()
        assert restored["settings"] == saved["settings"]
        for name, parts in saved["parameters"].items():
            assert all(
                torch.equal(part, restored["parameters"][name][field])
                for field, part in parts.items()
            )


@pytest.mark.parametrize("hook", ["variance", "top-k", "delayed"])
def test_a_copied_state_carries_all_but_the_model(ranks: Any, hook: str) -> None:
    ranks(copies, 2, "gloo", hook=hook).results()


def accumulate(hook: str) -> None:
    """Check that two backward passes, one without exchange, are one step on the sum."""
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
        # A delayed gradient shows an error one step late.
        for step in (1, 2):
            loss_of(ddp, step).backward()
    return "told"


@pytest.mark.parametrize(
    "hook", ["bf16", "variance", "top-k", "top-k of everything", "delayed", "delayed bf16"]
)
def test_errors_of_the_exchange_come_out_of_backward(ranks: Any, backend: str, hook: str) -> None:
    assert ranks(lose_a_peer, 2, backend, timeout_s=10, hook=hook).results() == ["told", "gone"]


def refuse() -> None:
    ddp = model(find_unused_parameters=True)
    for make in (hooks.DelayedState, hooks.VarianceState, hooks.TopKState):
        with pytest.raises(InvalidArgumentError, match="find_unused_parameters"):
            make(ddp)
    other = model()
    other.register_comm_hook(hooks.TopKState(Crossed()), hooks.topk_hook)
    # A hook's exception passes through DDP with its type.
    with pytest.raises(InvalidArgumentError, match="not in the model"):
        loss_of(other, 0).backward()


def test_what_would_lose_gradients_is_refused(ranks: Any) -> None:
    ranks(refuse, 1, "gloo").results()


def test_settings_are_checked() -> None:
    network = Crossed()
    for settings in (
        {"alpha": -1},
        {"zeta": 2},
        {"wire": "morse"},
        {"threshold": 0},
        {"threshold": 1, "wire": "powers"},
    ):
        with pytest.raises(InvalidArgumentError):
            hooks.VarianceState(network, **settings)
    for density in (0, 1.5):
        with pytest.raises(InvalidArgumentError):
            hooks.TopKState(network, density)


def test_a_state_of_something_else_is_not_loaded() -> None:
    network = Crossed()
    saved = hooks.VarianceState(network).state_dict()
    with pytest.raises(InvalidArgumentError, match="TopKState"):
        hooks.TopKState(network).load_state_dict(saved)
    state = hooks.TopKState(network)
    for parameters, message in (
        ({"absent": {"residual": torch.zeros(3)}}, "absent"),
        ({"scale": {"residual": torch.zeros(3)}}, "does not fit"),
        ({"scale": {"variance": torch.zeros(24)}}, "does not fit"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            state.load_state_dict({"settings": {"density": 0.5}, "parameters": parameters})
        assert state.state_dict() == {"settings": {"density": 0.01}, "parameters": {}}
