"""Collectives of objects are torch's, but take one exchange if the pickles are short."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed import all_gather_object as imported_early

from ringfold.errors import InvalidArgumentError

# Lengths of strings around the room in a frame, and far above; ranks have different ones.
LENGTHS = (0, 1, 4000, 4060, 4070, 4080, 4090, 4100, 10_000, 300_000)


def torchs(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return torch's own function."""
    inner: Callable[..., Any] = function.__wrapped__  # type: ignore[attr-defined]
    return inner


def exchanges() -> int:
    """Return how many collectives this rank has made in the default group."""
    group: Any = dist.group.WORLD
    return int(group._get_sequence_number_for_group())


def results(thing: Any, root: int, as_is: bool, **group: Any) -> list[Any]:
    """Return what each collective leaves on this rank."""
    rank, count = dist.get_rank(group.get("group")), dist.get_world_size(group.get("group"))
    by = torchs if as_is else lambda function: function
    gathered, at_root = [None] * count, [None] * count if rank == root else None
    by(dist.all_gather_object)(gathered, thing, **group)
    by(dist.gather_object)(thing, at_root, group_dst=root, **group)
    sent = [thing, rank, None] if rank == root else ["a", "b", "c"]
    by(dist.broadcast_object_list)(sent, group_src=root, **group)
    things = [(thing, to) for to in range(count)] if rank == root else None
    output = ["old", "kept"]
    by(dist.scatter_object_list)(output, things, group_src=root, **group)
    return [gathered, at_root, sent, output]


def compare() -> None:
    rank, count = dist.get_rank(), dist.get_world_size()
    for index in range(len(LENGTHS)):
        thing = {"rank": rank, "text": "x" * LENGTHS[(index + 3 * rank) % len(LENGTHS)]}
        for root in range(count):
            assert results(thing, root, False) == results(thing, root, True)
    if count == 1:
        return
    pair = dist.new_group([count - 1, 0])
    if rank in (0, count - 1):
        for root in (0, 1):
            assert results(rank, root, False, group=pair) == results(rank, root, True, group=pair)
        out: list[Any] = [None] * 2
        dist.gather_object(rank, out if rank == count - 1 else None, count - 1, group=pair)
        assert rank == 0 or sorted(out) == [0, count - 1]


@pytest.mark.parametrize("count", [1, 3])
def test_objects_of_any_length_arrive_as_by_torchs_functions(ranks: Any, count: int) -> None:
    ranks(compare, count, "ringfold").results()


def count_exchanges() -> list[list[int]]:
    found = []
    for length in (10, 100_000):
        counts = []
        for call in calls("x" * length):
            before = exchanges()
            call()
            counts.append(exchanges() - before)
        found.append(counts)
    return found


def calls(thing: Any) -> list[Callable[[], object]]:
    """Return one call of each collective, and one of a function imported before the group."""
    rank, count = dist.get_rank(), dist.get_world_size()
    filled: list[Any] = [None] * count
    things = [thing] * count if rank == 0 else None
    return [
        lambda: dist.all_gather_object(filled, thing),
        lambda: imported_early(filled, thing),
        lambda: dist.gather_object(thing, filled if rank == 0 else None),
        lambda: dist.broadcast_object_list([thing, thing]),
        lambda: dist.scatter_object_list([None], things),
    ]


def test_short_objects_take_one_exchange_and_long_ones_two(ranks: Any) -> None:
    for found in ranks(count_exchanges, 2, "ringfold").results():
        assert found == [[1] * 5, [2] * 5]


def fail_first() -> list[Any]:
    rank = dist.get_rank()
    found: list[Any] = [None] * 2
    if rank == 1:
        for call in calls(lambda: None)[:3]:
            with pytest.raises(Exception, match="pickle|local object"):
                call()
        with pytest.raises(ValueError, match="list of size at least 1"):
            dist.scatter_object_list([], None)
        with pytest.raises(ValueError, match="non-None"):
            dist.scatter_object_list([None], None, 1)
        with pytest.raises(ValueError, match="3 objects for 2 ranks"):
            dist.scatter_object_list([None], [1, 2, 3], 1)
        with pytest.raises(ValueError, match="gather_list"):
            dist.gather_object(1, [None], 0)
    with pytest.raises(ValueError, match="empty list"):
        dist.broadcast_object_list([])
    dist.all_gather_object(found, rank)
    with pytest.raises(InvalidArgumentError, match="2 for 1 objects") if rank else warned():
        dist.broadcast_object_list([1] * (1 + rank))
    dist.all_gather_object(found, rank)
    return found


def warned() -> Any:
    return warnings.catch_warnings()


def test_a_call_with_wrong_arguments_sends_nothing_and_the_next_one_works(ranks: Any) -> None:
    """As with torch's functions: another rank's call waits for this rank's next."""
    assert ranks(fail_first, 2, "ringfold").results() == [[0, 1]] * 2


def beside_others() -> None:
    rank = dist.get_rank()
    gloo = dist.new_group(backend="gloo")
    found: list[Any] = [None] * 3
    dist.all_gather_object(found, rank, group=gloo)
    assert found == [0, 1, 2]
    pair = dist.new_group([0, 1])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        untouched: list[Any] = ["kept", "kept"]
        dist.all_gather_object(untouched, rank, group=pair)
    if rank == 2:
        assert untouched == ["kept", "kept"] and "all_gather_object" in str(caught[0].message)
    else:
        assert untouched == [0, 1]
    with torch.device("meta"):
        for length in (1, 100_000):
            dist.all_gather_object(found, "x" * length)
            dist.gather_object("x" * length, found if rank == 0 else None)
            dist.broadcast_object_list(found)
            dist.scatter_object_list(found, list("xyz") if rank == 0 else None)


def test_other_backends_and_ranks_outside_of_a_group_are_as_before(ranks: Any) -> None:
    ranks(beside_others, 3, "ringfold").results()


def load_weights() -> None:
    rank = dist.get_rank()
    found: list[Any] = [None] * 2
    # A function of this module is no weight.
    dist.all_gather_object(found, {"w": torch.ones(2)}, weights_only=True)
    assert torch.equal(found[1]["w"], torch.ones(2))
    with pytest.raises(Exception, match="[Ww]eights"):
        dist.all_gather_object(found, load_weights, weights_only=True)
    output: list[Any] = [None]
    dist.scatter_object_list(output, [torch.ones(9000)] * 2 if rank == 0 else None, 0,
                             weights_only=True)  # fmt: skip
    assert output[0].sum() == 9000


def test_weights_are_loaded_as_weights_only(ranks: Any) -> None:
    """Also with a torch whose own functions do not have the argument yet."""
    ranks(load_weights, 2, "ringfold").results()
