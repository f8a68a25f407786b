"""Times a collective on torch's tensors, with output and rules of collectives_mpi.c.

Usage: collectives_torch.py LIBRARY COLLECTIVE COUNT ITERATIONS BUDGET_MS PIN PLACEMENT

LIBRARY is gloo or ringfold (the calls of torch.distributed), vllm or deepspeed (the operators that
these register with torch). PIN is 1 to bind each rank to a core. Placements are those of torch:
all_reduce, broadcast and reduce in place, the others out of place.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

from operators import OPERATORS, library

LINE_FLOATS = 16
MIN_ITERATIONS = 3
ROOT = 0
# Period of the input of a checked call: sums stay exact.
PERIOD = 1024

# The input whose lines are rewritten (empty if this rank has none), and the call.
Work = tuple[torch.Tensor, Callable[[], object]]


class Distributed:
    """torch.distributed over one of its backends."""

    def barrier(self) -> None:
        dist.barrier()

    def work(self, name: str, count: int) -> Work:
        rank, ranks = dist.get_rank(), dist.get_world_size()
        at_root = rank == ROOT
        share = torch.zeros(count)
        of_vectors: dict[str, Work] = {
            "all_reduce": (share, lambda: dist.all_reduce(share)),
            "broadcast": (share if at_root else share[:0], lambda: dist.broadcast(share, ROOT)),
            "reduce": (share, lambda: dist.reduce(share, ROOT)),
            "barrier": (share[:0], dist.barrier),
        }
        if name in of_vectors:
            return of_vectors[name]
        whole, other = torch.zeros(count * ranks), torch.zeros(count * ranks)
        shares = list(whole.chunk(ranks)) if at_root else None
        of_shares: dict[str, Work] = {
            "all_gather": (share, lambda: dist.all_gather_into_tensor(whole, share)),
            "reduce_scatter": (whole, lambda: dist.reduce_scatter_tensor(share, whole)),
            "all_to_all": (whole, lambda: dist.all_to_all_single(other, whole)),
            "gather": (share, lambda: dist.gather(share, shares, ROOT)),
            "scatter": (whole if at_root else whole[:0], lambda: dist.scatter(share, shares, ROOT)),
        }
        return of_shares[name]


class Operator:
    """An operator, which has no barrier.

    A call on one cache line is one exchange between all ranks, which leaves them closer together
    than gloo's barrier does.
    """

    def __init__(self, name: str) -> None:
        self.all_reduce = OPERATORS[name](library(Path(sys.prefix), name))
        self.line = torch.zeros(LINE_FLOATS)

    def barrier(self) -> None:
        self.all_reduce(self.line)

    def work(self, name: str, count: int) -> Work:
        assert name == "all_reduce", name
        data = torch.zeros(count)
        return data, lambda: self.all_reduce(data)


def call_us(measured: Distributed | Operator, work: Work) -> float:
    data, call = work
    data[::LINE_FLOATS] = 0
    measured.barrier()
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e6


def agreed_iterations(us: float, budget_us: float, most: int) -> int:
    slowest = torch.tensor([us], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return min(most, max(MIN_ITERATIONS, int(budget_us / slowest.item())))


def check(data: torch.Tensor, call: Callable[[], object]) -> None:
    """Exit if an all-reduce does not add up: wrong results are no comparison."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    phase = torch.arange(data.numel()) % PERIOD
    data[:] = rank + phase
    call()
    if not torch.equal(data, (ranks * (ranks - 1) // 2 + ranks * phase).float()):
        sys.exit(f"the sum is wrong on rank {rank}")


def main() -> None:
    chosen, name, count, most, budget_ms, pin, placement = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("ringfold" if chosen == "ringfold" else "gloo")
    if pin == "1":
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[dist.get_rank() % len(cores)]})
    measured = Operator(chosen) if chosen in OPERATORS else Distributed()
    work = measured.work(name, int(count))
    # The first barrier may be slower than the others, and is not part of the first call.
    measured.barrier()
    times = [call_us(measured, work)]
    begin = time.perf_counter()
    times.append(call_us(measured, work))
    iterations = agreed_iterations(
        (time.perf_counter() - begin) * 1e6, float(budget_ms) * 1e3, int(most)
    )
    times.extend(call_us(measured, work) for _ in range(iterations - 1))
    if name == "all_reduce":
        check(*work)
    slowest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if dist.get_rank() == ROOT:
        print(placement, *(f"{us:.3f}" for us in slowest.tolist()), flush=True)
    dist.destroy_process_group()


main()
