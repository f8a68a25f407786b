"""Tensors in registered memory; no registration outlives its tensor."""

import os
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

COUNT = 300_000
# Beyond the agreements at calls 16, 32 and 64, at two buckets per iteration.
ITERATIONS = 40


def own(offset: int = 0) -> torch.Tensor:
    return torch.arange(COUNT, dtype=torch.float32) % 97 + dist.get_rank() + offset


def total(offset: int = 0) -> torch.Tensor:
    parts = [
        torch.arange(COUNT, dtype=torch.float32) % 97 + rank + offset
        for rank in range(dist.get_world_size())
    ]
    return torch.stack(parts).sum(0)


def reduce_in_empty() -> Any:
    from ringfold.torch import empty

    tensor = empty(100, COUNT // 100)
    zeros = bool((tensor == 0).all())
    tensor.copy_(own().view_as(tensor))
    view = tensor.flatten()
    del tensor
    dist.all_reduce(view)
    return zeros, torch.equal(view, total()), empty(0, dtype=torch.int64).shape, empty((2, 3)).shape


@pytest.mark.parametrize("count", [1, 2, 3])
def test_a_tensor_of_registered_memory_is_like_any_other(ranks: Any, count: int) -> None:
    assert (
        ranks(reduce_in_empty, count, "ringfold").results() == [(True, True, (0,), (2, 3))] * count
    )


def refuse_to_grow() -> bool:
    from ringfold.torch import empty

    tensor = empty(COUNT)
    with pytest.raises(RuntimeError, match="not resizable"):
        tensor.resize_(2 * COUNT)
    return True


def test_registered_memory_cannot_grow(ranks: Any) -> None:
    assert ranks(refuse_to_grow, 2, "ringfold").results() == [True, True]


def resize_while_registered(factor: float, resizing_ranks: list[int]) -> Any:
    from ringfold.torch import register

    tensor = own()
    registration = register(tensor)
    dist.all_reduce(tensor)
    right = [torch.equal(tensor, total())]
    if dist.get_rank() in resizing_ranks:
        tensor.untyped_storage().resize_(int(COUNT * factor) * 4)
        tensor.untyped_storage().resize_(COUNT * 4)
    # The new owner of the old block must not be mistaken for the registered tensor, nor vice versa.
    others = [own(index) for index in range(8)]
    for index, other in enumerate(others):
        dist.all_reduce(other)
        right.append(torch.equal(other, total(index)))
    tensor.copy_(own(5))
    dist.all_reduce(tensor)
    right.append(torch.equal(tensor, total(5)))
    registration.close()
    tensor.copy_(own(6))
    dist.all_reduce(tensor)
    right.append(torch.equal(tensor, total(6)))
    return right


@pytest.mark.parametrize("factor", [0.0, 0.5, 8.0])
@pytest.mark.parametrize("resizing_ranks", [[0], [0, 1]])
def test_a_resized_storage_is_never_read_at_its_old_place(
    ranks: Any, factor: float, resizing_ranks: list[int]
) -> None:
    outcome = ranks(
        resize_while_registered, 2, "ringfold", factor=factor, resizing_ranks=resizing_ranks
    )
    assert outcome.results() == [[True] * 11] * 2


def buckets() -> Any:
    group = dist.distributed_c10d._get_default_group()
    return (
        group if hasattr(group, "communicator") else group._get_backend(torch.device("cpu"))
    ).buckets


def model(are_views: bool = False) -> DistributedDataParallel:
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512), nn.Linear(512, 8))
    return DistributedDataParallel(layers, bucket_cap_mb=1, gradient_as_bucket_view=are_views)


def train(module: DistributedDataParallel, iterations: int) -> None:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(dist.get_rank())
    for _ in range(iterations):
        optimizer.zero_grad()
        module(torch.randn(4, 512, generator=generator)).square().mean().backward()
        optimizer.step()


def train_and_let_go() -> Any:
    first = model()
    train(first, ITERATIONS)
    registered = len(buckets())
    weights = [parameter.detach().clone() for parameter in first.parameters()]
    del first
    right = []
    for offset in range(4):
        tensor = own(offset)
        dist.all_reduce(tensor)
        right.append(torch.equal(tensor, total(offset)))
    # The next model's calls lead to the next agreement, which releases the first model's buckets.
    second = model()
    train(second, ITERATIONS)
    same = all(
        torch.equal(one, other) for one, other in zip(weights, second.parameters(), strict=True)
    )
    return registered, len(buckets()), same, right


def test_buckets_are_registered_by_themselves_and_let_go_with_their_model(ranks: Any) -> None:
    for registered, later, same, right in ranks(train_and_let_go, 2, "ringfold").results():
        assert registered >= 2 and later == registered, (
            "as many as before: the first model's are gone"
        )
        assert same, "registered or not, the same bits"
        assert all(right)


def train_without() -> int:
    train(model(), ITERATIONS)
    return len(buckets())


def test_buckets_stay_where_they_are_if_the_environment_says_so(ranks: Any) -> None:
    outcome = ranks(train_without, 2, "ringfold", variables={"RINGFOLD_TORCH_BUCKETS": "0"})
    assert outcome.results() == [0, 0]


class ReducedInBackward(torch.autograd.Function):  # type: ignore[misc]
    """All-reduces a separate tensor during the backward pass."""

    @staticmethod
    def forward(context: Any, value: torch.Tensor, tensors: Any) -> torch.Tensor:
        context.tensors = tensors
        return value

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> Any:
        tensor = context.tensors()
        tensor.copy_(own())
        dist.all_reduce(tensor)
        assert torch.equal(tensor, total())
        return gradient, None


def stay_on_one_rank_only() -> int:
    kept = torch.empty(COUNT)
    stays = dist.get_rank() == 0
    value = torch.ones(1, requires_grad=True)
    for _ in range(2 * ITERATIONS):
        ReducedInBackward.apply(value, lambda: kept if stays else torch.empty(COUNT)).backward()
    return len(buckets())


def test_what_stays_on_some_ranks_only_is_not_registered(ranks: Any) -> None:
    assert ranks(stay_on_one_rank_only, 2, "ringfold").results() == [0, 0]


def fork_with_buckets() -> Any:
    module = model()
    train(module, ITERATIONS)
    data = torch.utils.data.TensorDataset(torch.arange(32.0))
    loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2)
    loaded = sum(float(batch.sum()) for (batch,) in loader)
    train(module, 2)
    return len(buckets()) > 0, loaded


def test_data_loader_workers_are_forked_beside_registered_buckets(ranks: Any) -> None:
    assert ranks(fork_with_buckets, 2, "ringfold").results() == [(True, 496.0)] * 2


def read_in_a_child() -> Any:
    module = model(are_views=True)
    train(module, ITERATIONS)
    gradients = [parameter.grad for parameter in module.parameters()]
    sums = [float(gradient.sum()) for gradient in gradients]
    child = os.fork()
    if child == 0:
        is_same = [float(gradient.sum()) for gradient in gradients] == sums
        for gradient in gradients:
            gradient.zero_()
        os._exit(7 if is_same else 8)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    is_whole = [float(gradient.sum()) for gradient in gradients] == sums
    return len(buckets()) > 0, any(sums), ended, is_whole


def test_a_forked_child_reads_gradients_in_registered_buckets(ranks: Any) -> None:
    assert ranks(read_in_a_child, 2, "ringfold").results() == [(True, True, 7, True)] * 2
