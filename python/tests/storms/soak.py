"""Random torch programs without end: no result is wrong, and no rank grows.

For `--seconds`, the programs use groups, restarts of the job's group, forks, messages and
registered memory. At quiescent points, each rank counts its descriptors, threads and mappings, and
its memory; `growth` judges them.
"""

import argparse
import ctypes
import gc
import os
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import growth
import harness
import torch_programs
from growth import Sample
from harness import Job, Place

import torch
import torch.distributed as dist
from programs import generator
from programs.runner import Failed, Rank
from torch._subclasses.fake_tensor import FakeTensorMode

SECONDS = 1800
SAMPLE_EVERY_S = 2.0
"""Minimum time between two samples."""
LEAKS: dict[str, Callable[[list[object]], object]] = {
    "descriptors": lambda kept: kept.append(os.open("/dev/null", os.O_RDONLY)),
    "objects": lambda kept: kept.extend(object() for _ in range(1000)),
    "memory": lambda kept: kept.append(bytearray(os.urandom(1 << 20))),
}
"""Leaks, called once per program, to test the judge."""


class MallInfo(ctypes.Structure):
    """Figures of glibc's allocator, as in mallinfo2(3)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks",
            "fordblks", "keepcost",
        )
    ]  # fmt: skip


LIBC = ctypes.CDLL(None)
LIBC.mallinfo2.restype = MallInfo
M_ARENA_MAX = -8


def sample(programs: int) -> Sample:
    """Return the resources of this process after `programs` programs."""
    # torch keeps a result for each shape that it has seen.
    FakeTensorMode.cache_clear()
    gc.collect()
    # Memory that the allocator keeps for later is not growth.
    LIBC.malloc_trim(0)
    in_use = LIBC.mallinfo2()
    # Without the pages of files, which vary, and are shared with other processes.
    status = Path("/proc/self/status").read_text()
    maps = Path("/proc/self/maps").read_text().splitlines()
    own = re.findall(r"^(?:RssAnon|RssShmem):\s+(\d+) kB$", status, re.M)
    return Sample(
        time.monotonic(),
        programs,
        # One descriptor is that of the listing.
        len(os.listdir("/proc/self/fd")) - 1,
        len(os.listdir("/proc/self/task")),
        sum(not is_of_allocators(line) for line in maps),
        sys.getallocatedblocks(),
        in_use.uordblks + in_use.hblkhd,
        sum(map(int, own)) << 10,
    )


def is_of_allocators(line: str) -> bool:
    """Return whether a line of /proc/self/maps is private memory without a file.

    This is memory of allocators, and buffers and registered memory that `allocated` counts.
    """
    _, rights, _, _, inode, *name = line.split()
    return rights == "rw-p" and inode == "0" and name in ([], ["[heap]"])


def program(me: harness.Rank, folder: str, seed: int, seconds: float, leak: str | None) -> None:
    """Run a rank's programs until the time is up."""
    torch_programs.prepare()
    torch_programs.use(me.place.transport)
    # Arenas of threads keep a random part of the freed memory.
    LIBC.mallopt(M_ARENA_MAX, 1)
    error: Exception | None = None
    kept: list[object] = []
    until = time.monotonic() + seconds
    try:
        rank = Rank(me.rank, me.ranks, folder)
        index, sampled = 0, 0.0
        # Rank 0 decides when the time is up, and when to take a sample.
        while (order := ordered(me.rank, until, sampled)) >= 0:
            if order:
                sampled = time.monotonic()
                me.say("sample", **vars(sample(index)))
            rank.run(seed, index)
            me.say("right")
            index += 1
            if leak:
                LEAKS[leak](kept)
        dist.destroy_process_group()
    except Exception as raised:
        error = raised
    kind = error.kind if isinstance(error, Failed) else "ok" if error is None else "Error"
    me.say("end", kind=kind, blamed=(), text=str(error or "")[:3000])


def ordered(rank: int, until: float, sampled: float) -> int:
    """Return rank 0's decision for all ranks: -1 to end, 1 to take a sample."""
    now = time.monotonic()
    order = -1 if now > until else int(now - sampled > SAMPLE_EVERY_S)
    decided = torch.tensor([order])
    dist.broadcast(decided, 0)
    # All ranks are here: no call is in progress.
    dist.barrier()
    return int(decided)


def soak(seed: int, ranks: int, seconds: float, transport: str, leak: str | None) -> list[str]:
    """Run one job for `seconds`; return the violated guarantees."""
    place = Place(transport)
    with tempfile.TemporaryDirectory() as folder:
        words = ["--folder", folder, f"--seconds={seconds}", f"--seed={seed}"]
        words += [f"--leak={leak}"] * bool(leak)
        with Job(lambda me: me.go_on_in(Path(__file__), *words), ranks, place, seed) as job:
            endings = job.finish(seconds + 2 * harness.WATCHDOG_S)
            events = job.events
    programs = min(sum(event["event"] == "right" for event in said) for said in events)
    print(f"{transport}: {programs} programs on {ranks} ranks in {seconds:g} s")
    broken = [str(ending) for ending in endings if ending.kind != "ok"]
    for rank, said in enumerate(events):
        samples = [
            Sample(**{name: event[name] for name in Sample.__dataclass_fields__})
            for event in said
            if event["event"] == "sample"
        ]
        if samples:
            print(f"rank {rank}\n{growth.table(samples)}")
        broken += [f"rank {rank}: {text}" for text in growth.judged(samples)]
    return broken


def main() -> None:
    """Run as the command line requests; exit with 1 if a guarantee was violated."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=SECONDS, help="duration in seconds (default %(default)s)"
    )
    parser.add_argument(
        "--ranks", type=int, default=3, help="number of ranks (default %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="(random)")
    parser.add_argument("--transport", default="shm", choices=("shm", "tcp"))
    parser.add_argument("--leak", choices=LEAKS, help="make all ranks leak, to test the judge")
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    said = parser.parse_args()
    if me := harness.Rank.resumed():
        program(me, said.folder, said.seed, said.seconds, said.leak)
        return
    print(f"soak.py --seconds {said.seconds:g} --ranks {said.ranks} --seed {said.seed}", flush=True)
    broken = soak(said.seed, said.ranks, said.seconds, said.transport, said.leak)
    for text in broken:
        print(f"VIOLATION: {text}", flush=True)
    sys.exit(bool(broken))


if __name__ == "__main__":
    main()
