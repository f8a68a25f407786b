"""Packed gradients without DDP: the result of one process on every rank, in any gradient order."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

from ringfold.errors import InvalidArgumentError, RingfoldError
from ringfold.torch import make_allreduce_cb

FEATURES = 6
# The network below has several packs of this size.
PACK_BYTES = 400


class Branches(nn.Module):  # type: ignore[misc]
    """Two branches, and a part that some steps do not use; in 32 and 64 bits.

    One parameter has another memory format.
    """

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(FEATURES, 16)
        self.right = nn.Linear(FEATURES, 16)
        self.image = nn.Conv2d(2, 4, 3).to(memory_format=torch.channels_last)
        self.precise = nn.Linear(16, 8, dtype=torch.float64)
        self.sometimes = nn.Linear(8, 8, dtype=torch.float64)
        self.never = nn.Parameter(torch.ones(5))

    def forward(self, x: torch.Tensor, swapped: bool = False, more: bool = True) -> torch.Tensor:
        # The branch that is used last has its gradients first.
        branches = [self.right, self.left] if swapped else [self.left, self.right]
        hidden = branches[0](x).tanh() + branches[1](x).tanh()
        image = self.image(x.repeat(1, 3).view(-1, 2, 3, 3)).mean()
        result: torch.Tensor = self.precise(hidden.double())
        return (self.sometimes(result).tanh() if more else result).square().mean() + image


def network() -> Branches:
    torch.manual_seed(3)
    return Branches()


def samples(step: int, rank: int | None = None) -> torch.Tensor:
    generator = torch.Generator().manual_seed(
        100 * step + (dist.get_rank() if rank is None else rank)
    )
    return torch.randn(4, FEATURES, generator=generator)


def more_of(step: int, rank: int) -> bool:
    """Return whether a rank uses the occasional part: in turn all, only rank 1, none."""
    return (True, rank == 1, False)[step % 3]


def alone(steps: int, world_size: int, op: str, set_to_none: bool) -> dict[str, torch.Tensor]:
    """Return the weights after the same steps in one process."""
    whole = network()
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    for step in range(steps):
        optimizer.zero_grad(set_to_none)
        for rank in range(world_size):
            (
                whole(samples(step, rank), more=more_of(step, rank))
                / (world_size if op == "mean" else 1)
            ).backward()
        optimizer.step()
    return {name: parameter.detach() for name, parameter in whole.named_parameters()}


def assert_equal_weights(module: nn.Module, expected: dict[str, torch.Tensor]) -> None:
    for name, parameter in module.named_parameters():
        assert torch.allclose(parameter, expected[name], rtol=0, atol=1e-6), name
        bits = [torch.empty_like(parameter).contiguous() for _ in range(dist.get_world_size())]
        dist.all_gather(bits, parameter.detach().contiguous())
        assert all(torch.equal(bits[0], other) for other in bits), name


def train(op: str, steps: int, set_to_none: bool) -> None:
    module = network()
    average = make_allreduce_cb(op, pack_bytes=PACK_BYTES)
    average.attach(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9, weight_decay=0.01)
    rank = dist.get_rank()
    for step in range(steps):
        optimizer.zero_grad(set_to_none=set_to_none)
        # Rank 1's gradients become ready in another order than rank 0's.
        module(samples(step), swapped=rank == 1, more=more_of(step, rank)).backward()
        average.wait()
        assert module.never.grad is None
        used = any(more_of(step, other) for other in range(dist.get_world_size()))
        assert not set_to_none or (module.sometimes.weight.grad is not None) == used
        optimizer.step()
    assert_equal_weights(module, alone(steps, dist.get_world_size(), op, set_to_none))


@pytest.mark.parametrize(
    ("op", "set_to_none"), [("mean", True), ("mean", False), ("sum", True), ("sum", False)]
)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_ranks_take_the_steps_of_one_process(
    ranks: Any, backend: str, op: str, set_to_none: bool, count: int
) -> None:
    ranks(train, count, backend, op=op, steps=7, set_to_none=set_to_none).results()


def accumulate() -> None:
    """Make three backward passes per step; only the first uses the occasional part."""
    module, whole = network(), network()
    average = make_allreduce_cb(pack_bytes=PACK_BYTES)
    average.attach(module)
    for step in range(3):
        module.zero_grad()
        whole.zero_grad()
        with average.no_sync():
            module(samples(3 * step), more=True).backward()
            module(samples(3 * step + 1), more=False).backward()
        module(samples(3 * step + 2), more=False).backward()
        average.wait()
        for rank in range(dist.get_world_size()):
            for part in range(3):
                (
                    whole(samples(3 * step + part, rank), more=part == 0) / dist.get_world_size()
                ).backward()
        for mine, expected in zip(module.parameters(), whole.parameters(), strict=True):
            assert (mine.grad is None) == (expected.grad is None)
            assert mine.grad is None or torch.allclose(mine.grad, expected.grad, rtol=0, atol=1e-6)


def test_gradients_of_several_passes_are_reduced_once(ranks: Any, backend: str) -> None:
    ranks(accumulate, 2, backend).results()


def freeze() -> None:
    """Freeze and unfreeze parameters between steps; check that gradients are those of all ranks."""
    module = network()
    module.left.requires_grad_(False)
    average = make_allreduce_cb(pack_bytes=PACK_BYTES)
    average.attach(module)
    for step in range(9):
        module.left.requires_grad_(step in (3, 4, 7))
        module.right.requires_grad_(step not in (2, 3, 7))
        module.zero_grad()
        module(samples(step)).backward()
        average.wait()
        expected = network()
        for rank in range(dist.get_world_size()):
            (expected(samples(step, rank)) / dist.get_world_size()).backward()
        for name, parameter in module.named_parameters():
            if not parameter.requires_grad or name == "never":
                assert parameter.grad is None, (step, name)
            else:
                wanted = expected.get_parameter(name).grad
                assert torch.allclose(parameter.grad, wanted, rtol=0, atol=1e-6), (step, name)


def test_parameters_may_be_frozen_and_unfrozen(ranks: Any, backend: str) -> None:
    ranks(freeze, 2, backend).results()


def views() -> None:
    module = network()
    average = make_allreduce_cb(pack_bytes=1 << 20)
    average.attach(module)
    for step in range(3):
        if step > 0:
            module.zero_grad(set_to_none=False)
        before = [parameter.grad for parameter in module.parameters()]
        module(samples(step)).backward()
        average.wait()
        for parameter, view in zip(module.parameters(), before, strict=True):
            # Autograd added into the pack itself.
            assert step == 0 or parameter.grad is view
            assert parameter.grad is None or parameter.grad.stride() == parameter.stride()
        storages = {
            (parameter.dtype, parameter.grad.untyped_storage().data_ptr())
            for parameter in module.parameters()
            if parameter.grad is not None
        }
        # One pack for each type.
        assert len(storages) == 2


def test_gradients_are_views_of_their_packs(ranks: Any, backend: str) -> None:
    ranks(views, 2, backend).results()


def overlap() -> tuple[list[str], list[str]]:
    module = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
    average = make_allreduce_cb(pack_bytes=8 * 8 * 4)
    average.attach(module)
    events: list[str] = []
    module[0].weight.register_hook(lambda _: events.append("last gradient"))
    begin, found = dist.all_reduce, []

    def all_reduce(*arguments: Any, **options: Any) -> Any:
        events.append("pack")
        return begin(*arguments, **options)

    dist.all_reduce = all_reduce
    for _ in range(2):
        events.clear()
        module(torch.ones(1, 8)).sum().backward()
        average.wait()
        found.append(list(events))
    dist.all_reduce = begin
    return found[0], found[1]


def test_packs_travel_while_backward_goes_on(ranks: Any, backend: str) -> None:
    for first, second in ranks(overlap, 2, backend).results():
        assert first[0] == "last gradient" and len(first) > 4
        assert second.index("last gradient") >= 4 and len(second) == len(first)


def wrong_use() -> None:
    module = nn.Linear(3, 3)
    average = make_allreduce_cb()
    average.attach(module)
    for _ in range(2):
        module(torch.ones(1, 3)).sum().backward()
        with pytest.raises(RingfoldError, match="no_sync"):
            module(torch.ones(1, 3)).sum().backward()
        average.wait()
    with pytest.raises(InvalidArgumentError, match="already attached"):
        average.attach(module.parameters())
    average.detach()
    module(torch.ones(1, 3)).sum().backward()
    average.attach(module.parameters())
    sparse = nn.Embedding(5, 2, sparse=True)
    average = make_allreduce_cb()
    average.attach(sparse)
    sparse(torch.tensor([1])).sum().backward()
    with pytest.raises(InvalidArgumentError, match="sparse"):
        average.wait()


def test_wrong_use_is_told(ranks: Any) -> None:
    ranks(wrong_use, 1, "gloo").results()


def differ(what: str) -> Any:
    rank = dist.get_rank()
    module = {
        "shape": lambda: nn.Linear(3, 3 + rank % 2),
        "type": lambda: nn.Linear(3, 3, dtype=torch.float64 if rank == 1 else torch.float32),
        "count": lambda: nn.Linear(3, 3, bias=rank == 0),
        "frozen": lambda: nn.Linear(3, 3),
    }[what]()
    average = make_allreduce_cb()
    average.attach(module)
    for step in range(3):
        if what == "frozen" and step == 1 and rank == 1:
            module.bias.requires_grad_(False)
        module(torch.ones(1, 3, dtype=module.weight.dtype)).sum().backward()
        try:
            average.wait()
        except InvalidArgumentError as error:
            return step, str(error).removeprefix("the parameters of ranks differ: ")
    return "nothing"


@pytest.mark.parametrize(
    ("what", "told"),
    [
        (
            "shape",
            (
                0,
                "rank 0 has `weight` torch.float32 [3, 3], rank 1 has `weight` torch.float32 [4, "
                "3]",
            ),
        ),
        (
            "type",
            (
                0,
                "rank 0 has `weight` torch.float32 [3, 3], rank 1 has `weight` torch.float64 [3, "
                "3]",
            ),
        ),
        ("count", (0, "rank 0 has 2 of them, rank 1 has 1")),
        ("frozen", (2, "rank 0 has 2 of them, rank 1 has 1")),
    ],
)
def test_ranks_with_other_parameters_are_told_so_on_every_rank(
    ranks: Any, backend: str, what: str, told: Any
) -> None:
    assert ranks(differ, 3, backend, what=what).results() == [told] * 3


def several_modules() -> Any:
    """Use two modules that both have a `weight`, a list, complex numbers and half precision."""
    torch.manual_seed(1)
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    waves = nn.Parameter(torch.ones(4, dtype=torch.complex64))
    half = nn.Parameter(torch.ones(4, dtype=torch.bfloat16))
    average = make_allreduce_cb("sum")
    average.attach(first)
    average.attach(second)
    average.attach([waves, half])
    rank = dist.get_rank()
    for _ in range(2):
        for parameter in (*first.parameters(), *second.parameters(), waves, half):
            parameter.grad = None
        loss = first(torch.ones(1, 3)).sum() + second(torch.ones(1, 3)).sum() * (rank + 1)
        (loss + (waves * (1 + rank * 1j)).sum().real + half.sum()).backward()
        average.wait()
    return (
        float(first.weight.grad[0, 0]),
        float(second.weight.grad[0, 0]),
        waves.grad[0].item(),
        float(half.grad[0]),
    )


def test_parameters_of_all_kinds_come_from_several_modules(ranks: Any, backend: str) -> None:
    assert ranks(several_modules, 2, backend).results() == [(2.0, 3.0, 2 - 1j, 2.0)] * 2


def other_backend(name: str) -> Any:
    average = make_allreduce_cb("mean", backend=name)
    module = nn.Linear(2, 2, bias=False)
    average.attach(module)
    for _ in range(3):
        module.zero_grad()
        module(torch.full((1, 2), float(dist.get_rank()))).sum().backward()
        average.wait()
    found = dist.get_backend(average.group), module.weight.grad.tolist()
    average.detach()
    return found


@pytest.mark.parametrize("name", ["ringfold", "shm", "gloo"])
def test_packs_may_go_by_another_backend(ranks: Any, name: str) -> None:
    expected = "gloo" if name == "gloo" else "ringfold"
    assert (
        ranks(other_backend, 2, "gloo", name=name).results() == [(expected, [[0.5, 0.5]] * 2)] * 2
    )


def test_settings_are_checked() -> None:
    with pytest.raises(InvalidArgumentError, match="op `max`"):
        make_allreduce_cb("max")
    with pytest.raises(InvalidArgumentError, match="pack_bytes"):
        make_allreduce_cb(pack_bytes=0)
