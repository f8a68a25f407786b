"""torch.distributed's calls one by one: inputs, outputs and options."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import GatherOptions


def numbers(count: int, *shape: int) -> Any:
    """Return the values of `count` ranks, in this shape."""
    size = torch.Size(shape).numel()
    return [
        (torch.arange(size) * (rank + 2) + rank).reshape(shape).to(torch.float32)
        for rank in range(count)
    ]


def call_everything(shape: list[int]) -> dict[str, Any]:
    """Make each collective on dense tensors of this shape."""
    rank, count = dist.get_rank(), dist.get_world_size()
    x = numbers(count, *shape)[rank]
    mine = [x + 1000 * to for to in range(count)]

    def empty() -> Any:
        return torch.full_like(x, -1)

    found: dict[str, Any] = {}
    found["all_reduce"] = x.clone()
    dist.all_reduce(found["all_reduce"])
    found["reduce"] = x.clone()
    dist.reduce(found["reduce"], 1)
    found["broadcast"] = x.clone()
    dist.broadcast(found["broadcast"], 1)
    found["all_gather"] = [empty() for _ in range(count)]
    dist.all_gather(found["all_gather"], x)
    # The tensor of all ranks has one more dimension if the input has none.
    found["all_gather_into_tensor"] = torch.cat([torch.atleast_1d(empty())] * count)
    dist.all_gather_into_tensor(found["all_gather_into_tensor"], torch.atleast_1d(x))
    found["gather"] = [empty() for _ in range(count)] if rank == 1 else None
    dist.gather(x, found["gather"], 1)
    found["scatter"] = empty()
    dist.scatter(found["scatter"], mine if rank == 1 else None, 1)
    found["reduce_scatter"] = empty()
    dist.reduce_scatter(found["reduce_scatter"], mine)
    found["reduce_scatter_tensor"] = torch.atleast_1d(empty())
    dist.reduce_scatter_tensor(
        found["reduce_scatter_tensor"], torch.cat([torch.atleast_1d(each) for each in mine])
    )
    found["all_to_all_single"] = torch.stack([empty()] * count)
    dist.all_to_all_single(found["all_to_all_single"], torch.stack(mine))
    found["sent"] = empty()
    started = dist.isend(x, (rank + 1) % count)
    dist.recv(found["sent"], (rank - 1) % count)
    started.wait()
    dist.barrier()
    return found


@pytest.mark.parametrize("shape", [[7], [2, 3, 4], [1], [], [0], [3, 0, 2], [5000]])
@pytest.mark.parametrize("count", [2, 3])
def test_collectives_do_what_they_say(
    ranks: Any, backend: str, count: int, shape: list[int]
) -> None:
    xs = numbers(count, *shape)
    total = torch.stack(xs).sum(0)
    for rank, found in enumerate(ranks(call_everything, count, backend, shape=shape).results()):
        block = total + 1000 * rank * count
        expected = {
            "all_reduce": total,
            "broadcast": xs[1],
            "all_gather": xs,
            "all_gather_into_tensor": torch.cat([torch.atleast_1d(x) for x in xs]),
            "scatter": xs[1] + 1000 * rank,
            "reduce_scatter": block,
            "reduce_scatter_tensor": torch.atleast_1d(block),
            "all_to_all_single": torch.stack([x + 1000 * rank for x in xs]),
            "sent": xs[rank - 1],
            "gather": xs if rank == 1 else None,
        }
        if rank == 1:
            expected["reduce"] = total
        for name, value in expected.items():
            torch.testing.assert_close(
                found[name], value, rtol=0, atol=0, msg=f"{name} on rank {rank}: {found[name]}"
            )


def call_on_scattered_elements() -> dict[str, Any]:
    """Make calls whose inputs and outputs are not contiguous."""
    rank, count = dist.get_rank(), dist.get_world_size()

    def turned() -> Any:
        return numbers(count, 4, 6)[rank].t()

    found: dict[str, Any] = {}
    found["all_reduce"] = turned()
    dist.all_reduce(found["all_reduce"])
    found["broadcast"] = turned()
    dist.broadcast(found["broadcast"], 1)
    found["all_gather"] = [torch.zeros(4, 6).t() for _ in range(count)]
    dist.all_gather(found["all_gather"], turned())
    # Receives every other column of a wider tensor; the other columns must not change.
    wide = torch.full((6, 8), -1.0)
    found["received"] = wide
    started = dist.isend(turned()[:, :4].contiguous(), (rank + 1) % count)
    dist.recv(wide[:, ::2], (rank - 1) % count)
    started.wait()
    return found


def test_elements_need_not_be_in_a_row(ranks: Any) -> None:
    # gloo supports some of this for all_reduce only.
    xs = [x.t() for x in numbers(3, 4, 6)]
    for rank, found in enumerate(ranks(call_on_scattered_elements, 3, "ringfold").results()):
        assert torch.equal(found["all_reduce"], torch.stack(xs).sum(0))
        assert not found["all_reduce"].is_contiguous()
        assert torch.equal(found["broadcast"], xs[1])
        assert all(torch.equal(*pair) for pair in zip(found["all_gather"], xs, strict=True))
        assert torch.equal(found["received"][:, ::2], xs[rank - 1][:, :4])
        assert (found["received"][:, 1::2] == -1).all()


def gather_into_one() -> Any:
    x = numbers(2, 2, 3)[dist.get_rank()]
    flat = torch.zeros(4, 3)
    opts = GatherOptions()
    opts.rootRank = 1
    # torch 2.15's `gather_single` calls this method.
    group: Any = dist.distributed_c10d._get_default_group()
    group.gather_single(flat if dist.get_rank() == 1 else x.new_empty(0), x, opts).wait()
    return flat


def test_parts_are_gathered_into_one_tensor(ranks: Any) -> None:
    found = ranks(gather_into_one, 2, "ringfold").results()
    assert torch.equal(found[1], torch.cat(numbers(2, 2, 3))) and not found[0].any()


def call_with_gradients_required() -> Any:
    weight = torch.ones(5, requires_grad=True)
    dist.broadcast(weight, 0)
    with torch.no_grad():
        dist.all_reduce(weight)
    gathered = [torch.empty(5) for _ in range(dist.get_world_size())]
    dist.all_gather(gathered, weight)
    return weight.detach(), weight.requires_grad, gathered[-1]


def test_parameters_are_tensors_like_others(ranks: Any, backend: str) -> None:
    for weight, requires_grad, last in ranks(call_with_gradients_required, 2, backend).results():
        assert weight.tolist() == last.tolist() == [2] * 5 and requires_grad


def start_many() -> Any:
    """Start asynchronous calls, wait for them in reverse order, and use their handles."""
    xs = [torch.full((50,), float(index + dist.get_rank())) for index in range(30)]
    started = [dist.all_reduce(x, async_op=True) for x in xs]
    for work in reversed(started):
        assert work.wait()
    assert all(work.is_completed() for work in started)
    value = dist.all_reduce(torch.ones(3), async_op=True).get_future().wait()
    return [x[0].item() for x in xs], [tensor.tolist() for tensor in value]


def test_calls_are_waited_for_in_any_order(ranks: Any, backend: str) -> None:
    expected = ([2 * index + 1.0 for index in range(30)], [[2.0] * 3])
    assert ranks(start_many, 2, backend).results() == [expected] * 2


def send_unevenly() -> Any:
    """Send i + 1 rows from rank i to each rank, as splits of one tensor."""
    rank, count = dist.get_rank(), dist.get_world_size()
    output = torch.empty(sum(range(1, count + 1)), 2)
    given = torch.arange(count * (rank + 1) * 2.0).reshape(-1, 2) + 100 * rank
    dist.all_to_all_single(output, given, [other + 1 for other in range(count)], [rank + 1] * count)
    return given, output


def test_all_to_all_takes_splits(ranks: Any, backend: str) -> None:
    results = ranks(send_unevenly, 3, backend).results()
    for rank, (_, output) in enumerate(results):
        parts = [
            given[rank * (other + 1) : (rank + 1) * (other + 1)]
            for other, (given, _) in enumerate(results)
        ]
        assert torch.equal(output, torch.cat(parts))


def share_unevenly() -> Any:
    """Use lists of tensors with different sizes, which torch's own CPU backends refuse."""
    rank, count = dist.get_rank(), dist.get_world_size()
    mine = torch.full((rank + 1, 2), float(rank))
    gathered = [torch.empty(other + 1, 2) for other in range(count)]
    dist.all_gather(gathered, mine)
    exchanged = [torch.empty(rank + other) for other in range(count)]
    dist.all_to_all(
        exchanged, [torch.full((rank + other,), 10.0 * rank + other) for other in range(count)]
    )
    reduced = torch.empty(rank + 1)
    dist.reduce_scatter(
        reduced, [torch.full((other + 1,), rank + 10.0 * other) for other in range(count)]
    )
    return gathered, exchanged, reduced


def test_lists_may_have_tensors_of_different_sizes(ranks: Any) -> None:
    for rank, (gathered, exchanged, reduced) in enumerate(
        ranks(share_unevenly, 3, "ringfold").results()
    ):
        assert [tensor.tolist() for tensor in gathered] == [
            [[float(other)] * 2] * (other + 1) for other in range(3)
        ]
        assert [tensor.tolist() for tensor in exchanged] == [
            [10.0 * other + rank] * (rank + other) for other in range(3)
        ]
        assert reduced.tolist() == [3 + 30.0 * rank] * (rank + 1)


def pass_objects() -> Any:
    rank, count = dist.get_rank(), dist.get_world_size()
    mine = {"rank": rank, "text": "x" * (1000 * rank)}
    gathered: list[Any] = [None] * count
    dist.all_gather_object(gathered, mine)
    at_root: list[Any] | None = [None] * count if rank == 1 else None
    dist.gather_object(mine, at_root, 1)
    shared = [mine, rank] if rank == 2 else [None, None]
    dist.broadcast_object_list(shared, 2)
    own: list[Any] = [None]
    dist.scatter_object_list(
        own, [{"to": other} for other in range(count)] if rank == 0 else None, 0
    )
    if rank == 0:
        dist.send_object_list([mine, "two"], 1)
    passed: list[Any] = [None, None]
    if rank == 1:
        dist.recv_object_list(passed, 0)
    return gathered, at_root, shared, own, passed


def test_objects_are_passed(ranks: Any, backend: str) -> None:
    objects = [{"rank": rank, "text": "x" * (1000 * rank)} for rank in range(3)]
    for rank, (gathered, at_root, shared, own, passed) in enumerate(
        ranks(pass_objects, 3, backend).results()
    ):
        assert gathered == objects and at_root == (objects if rank == 1 else None)
        assert shared == [objects[2], 2] and own == [{"to": rank}]
        assert passed == ([objects[0], "two"] if rank == 1 else [None, None])


def coalesce(asynchronous: bool) -> Any:
    rank, count = dist.get_rank(), dist.get_world_size()
    reduced = [torch.full((size,), rank + 1.0) for size in (3, 1, 100)]
    gathered = [torch.empty(count * size) for size in (2, 5)]
    scattered = [torch.empty(size) for size in (2, 5)]
    batches: list[Callable[[], object]] = [
        lambda: [dist.all_reduce(x) for x in reduced],
        lambda: [
            dist.all_gather_into_tensor(x, torch.full((len(x) // count,), rank + 1.0))
            for x in gathered
        ],
        lambda: [
            dist.reduce_scatter_tensor(x, torch.arange(float(len(x) * count))) for x in scattered
        ],
    ]
    for calls in batches:
        with dist._coalescing_manager(async_ops=asynchronous) as manager:
            calls()
        if asynchronous:
            manager.wait()
    return [x.tolist() for x in (*reduced, *gathered, *scattered)]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_calls_are_coalesced(ranks: Any, backend: str, asynchronous: bool) -> None:
    for rank, found in enumerate(ranks(coalesce, 2, backend, asynchronous=asynchronous).results()):
        reduced, gathered, scattered = found[:3], found[3:5], found[5:]
        assert reduced == [[3.0] * size for size in (3, 1, 100)]
        assert gathered == [[1.0] * size + [2.0] * size for size in (2, 5)]
        assert scattered == [
            [2.0 * (rank * size + index) for index in range(size)] for size in (2, 5)
        ]


def exchange_in_batches() -> Any:
    """Start several messages to and from each other rank at once, in another order on each rank."""
    rank, count = dist.get_rank(), dist.get_world_size()
    others = [(rank + step) % count for step in range(1, count)]
    received = {
        (other, index): torch.empty(10 * index + 1) for other in others for index in range(3)
    }
    operations = [dist.P2POp(dist.irecv, tensor, other) for (other, _), tensor in received.items()]
    for other in reversed(others):
        sent = [
            torch.full((10 * index + 1,), 100.0 * rank + 10 * other + index) for index in range(3)
        ]
        operations[:0] = [dist.P2POp(dist.isend, tensor, other) for tensor in sent]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return {key: tensor.tolist() for key, tensor in received.items()}


@pytest.mark.parametrize("count", [2, 3])
def test_messages_are_exchanged_in_batches(ranks: Any, backend: str, count: int) -> None:
    for rank, received in enumerate(ranks(exchange_in_batches, count, backend).results()):
        for (other, index), values in received.items():
            assert values == [100.0 * other + 10 * rank + index] * (10 * index + 1)


def exchange_with_all() -> Any:
    """Exchange a batch of messages with all ranks, this one included; then with this rank only."""
    rank, count = dist.get_rank(), dist.get_world_size()
    received = [torch.zeros(2, 3)[:, ::2] for _ in range(count)]
    operations = []
    for other in range(count):
        given = torch.full((2, 2), 10.0 * rank + other)
        operations.append(dist.P2POp(dist.isend, given, other))
        operations.append(dist.P2POp(dist.irecv, received[other], other))
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    group = dist.distributed_c10d._get_default_group()
    anybody = [torch.zeros(1), torch.zeros(1)]
    for tag in (1, 2):
        group.send([torch.full((1,), 1.0 + tag)], rank, tag).wait()
    for tensor, tag in zip(anybody, (2, 1), strict=True):
        work = group.recv_anysource([tensor], tag)
        work.wait()
        assert work._source_rank() == rank
    return [tensor.tolist() for tensor in received], [tensor.item() for tensor in anybody]


def test_ranks_send_to_themselves(ranks: Any) -> None:
    for rank, (received, anybody) in enumerate(ranks(exchange_with_all, 2, "ringfold").results()):
        assert received == [[[10.0 * other + rank] * 2] * 2 for other in range(2)]
        assert anybody == [3.0, 2.0]


def receive_by_tag() -> Any:
    """Receive messages by their tags, in another order than sent, and from any source."""
    rank, count = dist.get_rank(), dist.get_world_size()
    if rank:
        started = [dist.isend(torch.full((2,), 10.0 * rank + tag), 0, tag=tag) for tag in (1, 2)]
        for work in started:
            work.wait()
        dist.send(torch.full((1,), float(rank)), 0, tag=3)
        return None
    found = []
    for other in range(1, count):
        for tag in (2, 1):
            tensor = torch.empty(2)
            assert dist.recv(tensor, other, tag=tag) == other
            found.append(tensor[0].item())
    anybody = torch.empty(1)
    return found, sorted((dist.recv(anybody, tag=3), anybody.item()) for _ in range(1, count))


def test_messages_are_taken_by_tag_and_from_anybody(ranks: Any, backend: str) -> None:
    root, *_ = ranks(receive_by_tag, 3, backend).results()
    assert root == ([12.0, 11.0, 22.0, 21.0], [(1, 1.0), (2, 2.0)])


ROUNDS = 40


def use_groups_from_threads() -> Any:
    """Use a group in each thread, and the world's group in the main thread."""
    rank, count = dist.get_rank(), dist.get_world_size()
    members = [list(range(count)), [0, 1], [1, 2], [0, 2], list(range(count))]
    groups = [dist.new_group(ranks) for ranks in members]
    wrong: list[str] = []

    def work(name: str, group: Any, ranks: list[int]) -> None:
        try:
            for round_ in range(ROUNDS):
                size = (1, 300, 20000)[round_ % 3]
                tensor = torch.full((size,), float(rank + round_))
                dist.all_reduce(tensor, group=group)
                expected = float(sum(other + round_ for other in ranks))
                if not bool((tensor == expected).all()):
                    wrong.append(f"{name}, round {round_}: {tensor[0]} instead of {expected}")
        except Exception as error:
            wrong.append(f"{name}: {error!r}")

    pairs = list(zip(groups, members, strict=True))
    mine = [
        (f"group {index}", group, ranks)
        for index, (group, ranks) in enumerate(pairs)
        if rank in ranks
    ]
    threads = [threading.Thread(target=work, args=what) for what in mine]
    for thread in threads:
        thread.start()
    work("world", dist.group.WORLD, list(range(count)))
    for thread in threads:
        thread.join()
    return wrong


def test_groups_are_used_from_several_threads_at_once(ranks: Any, backend: str) -> None:
    assert ranks(use_groups_from_threads, 3, backend).results() == [[]] * 3


def form_and_leave_groups() -> Any:
    found = []
    for _ in range(3):
        group = dist.new_group([0, 2])
        if dist.get_rank() != 1:
            tensor = torch.ones(1)
            dist.all_reduce(tensor, group=group)
            found.append((tensor.item(), dist.get_rank(group), dist.get_process_group_ranks(group)))
            dist.destroy_process_group(group)
        dist.barrier()
    return found


def test_groups_come_and_go(ranks: Any, backend: str) -> None:
    expected = [[(2.0, place, [0, 2])] * 3 for place in (0, 1)]
    assert ranks(form_and_leave_groups, 3, backend).results() == [expected[0], [], expected[1]]
