"""Groups in sequence and many groups at once: their cost, and that they leave nothing."""

import os
import resource
import time
from collections import Counter
from typing import Any

import pytest
import torch
import torch.distributed as dist

WATCHDOG_S = 120.0
DESCRIPTORS_OF_GROUP_MAX = 3
ANONYMOUS_SLACK = 30
"""Mappings that Python and the C library may make in the meantime."""
RSS_SLACK_KIB = 20_000


def descriptors() -> Counter[str]:
    found: Counter[str] = Counter()
    for number in os.listdir("/proc/self/fd"):
        try:
            found[os.readlink(f"/proc/self/fd/{number}").partition(":[")[0]] += 1
        except FileNotFoundError:
            # The descriptor of the listing itself.
            continue
    return found


def held() -> dict[str, Counter[str]]:
    """Return what the library may hold in this process: descriptors, threads, shared mappings."""
    with open("/proc/self/maps") as maps:
        shared = [line.split()[5] for line in maps if "/memfd:" in line]
    names = []
    for task in os.listdir("/proc/self/task"):
        try:
            with open(f"/proc/self/task/{task}/comm") as comm:
                names.append(comm.read().strip())
        except (FileNotFoundError, ProcessLookupError):
            continue
    threads = Counter(name for name in names if name.startswith("ringfold"))
    return {"descriptors": descriptors(), "threads": threads, "mappings": Counter(shared)}


def settled(before: dict[str, Counter[str]]) -> dict[str, Counter[str]]:
    """Return what is held beyond `before`, once threads that are about to end have ended."""
    deadline = time.monotonic() + WATCHDOG_S
    while True:
        more = {name: now - before[name] for name, now in held().items()}
        if not any(more.values()) or time.monotonic() > deadline:
            return more
        time.sleep(0.01)


def mappings() -> int:
    with open("/proc/self/maps") as maps:
        return sum(1 for _ in maps)


def rss_kib() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


def use(group: Any) -> list[Any]:
    """Make calls of every kind, and return all references that a program may keep."""
    calls = [dist.all_reduce(torch.ones(4), group=group, async_op=True) for _ in range(2)]
    futures = [call.get_future().then(lambda future: future.value()) for call in calls]
    for future in futures:
        future.wait()
    outputs = [torch.zeros(50_000) for _ in range(dist.get_world_size())]
    # The handle is dropped before the call is done.
    dist.all_gather(outputs, torch.ones(50_000), group=group, async_op=True)
    dist.all_reduce(torch.ones(3)[::2], group=group)
    dist.barrier(group)
    return [*calls, *futures, group.communicator]


def keep_references(count: int) -> Any:
    everyone = list(range(dist.get_world_size()))
    kept = []
    before, mapped = held(), mappings()
    for turn in range(count):
        group = dist.new_group(everyone)
        kept.append((group, use(group)))
        dist.destroy_process_group(group)
        if turn == 0:
            # The library's own resources, which it makes once.
            before, mapped = held(), mappings()
    more = {name: dict(found) for name, found in settled(before).items() if found}
    more_mapped = mappings() - mapped
    # Access to a closed group neither works nor hangs.
    communicator = kept[0][1][-1]
    stopped = communicator.job is None and communicator.transport in ("shm", "tcp")
    return more, more_mapped, stopped


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_destroyed_groups_leave_nothing_whoever_holds_them(ranks: Any, transport: str) -> None:
    count = 40
    variables = {"RINGFOLD_TRANSPORT": transport}
    outcome = ranks(keep_references, 3, "ringfold", variables=variables, count=count)
    for more, more_mapped, stopped in outcome.results():
        assert more == {}
        assert more_mapped < ANONYMOUS_SLACK
        assert stopped


def hold_at_once(count: int, limit: int | None) -> tuple[float, list[float]]:
    """Return the descriptors per group of `count` groups, and their sums; all within a limit."""
    everyone = list(range(dist.get_world_size()))
    before = len(os.listdir("/proc/self/fd"))
    soft = limit or before + count * DESCRIPTORS_OF_GROUP_MAX
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    groups = [dist.new_group(everyone) for _ in range(count)]
    sums = []
    for group in groups:
        tensor = torch.ones(5)
        dist.all_reduce(tensor, group=group)
        sums.append(tensor.sum().item())
    each = (len(os.listdir("/proc/self/fd")) - before) / count
    for group in groups:
        dist.destroy_process_group(group)
    return each, sums


@pytest.mark.parametrize(
    ("count", "limit"),
    [(40, None), pytest.param(300, 1024, marks=pytest.mark.deep)],
)
def test_many_groups_at_once_need_few_descriptors(
    ranks: Any, count: int, limit: int | None
) -> None:
    # Each group takes some milliseconds; the time limit is generous.
    outcome = ranks(hold_at_once, 3, "ringfold", limit_s=60 + 2 * count, count=count, limit=limit)
    for each, sums in outcome.results():
        assert each <= DESCRIPTORS_OF_GROUP_MAX
        assert sums == [15.0] * count


def make_one_after_the_other(count: int) -> tuple[Any, int, int]:
    everyone = list(range(dist.get_world_size()))
    before, mapped, memory = held(), mappings(), rss_kib()
    for turn in range(count):
        group = dist.new_group(everyone)
        dist.all_reduce(torch.ones(10), group=group)
        dist.destroy_process_group(group)
        if turn == count // 5:
            before, mapped, memory = held(), mappings(), rss_kib()
    more = {name: dict(found) for name, found in settled(before).items() if found}
    return more, mappings() - mapped, rss_kib() - memory


@pytest.mark.parametrize("count", [60, pytest.param(5000, marks=pytest.mark.deep)])
def test_any_number_of_groups_one_after_the_other(ranks: Any, count: int) -> None:
    outcome = ranks(
        make_one_after_the_other, 2, "ringfold", limit_s=60 + count, count=count
    )
    for more, more_mapped, more_kib in outcome.results():
        assert more == {}
        assert more_mapped < ANONYMOUS_SLACK
        assert more_kib < RSS_SLACK_KIB
