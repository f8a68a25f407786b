"""Times a collective of torch.distributed over gloo, with output and rules of collectives_mpi.c.

Usage: collectives_gloo.py COLLECTIVE COUNT ITERATIONS BUDGET_MS PIN PLACEMENT   PIN is 1 to bind
each rank to a core. Placements are those of torch: all_reduce, broadcast and reduce in place, the
others out of place.
"""

import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

LINE_FLOATS = 16
MIN_ITERATIONS = 3
ROOT = 0


def collective(name: str, count: int) -> tuple[torch.Tensor, Callable[[], object]]:
    """Return the input whose lines are rewritten (empty if this rank has none), and the call."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    at_root = rank == ROOT
    share = torch.zeros(count)
    of_vectors: dict[str, tuple[torch.Tensor, Callable[[], object]]] = {
        "all_reduce": (share, lambda: dist.all_reduce(share)),
        "broadcast": (share if at_root else share[:0], lambda: dist.broadcast(share, ROOT)),
        "reduce": (share, lambda: dist.reduce(share, ROOT)),
        "barrier": (share[:0], dist.barrier),
    }
    if name in of_vectors:
        return of_vectors[name]
    whole, other = torch.zeros(count * ranks), torch.zeros(count * ranks)
    shares = list(whole.chunk(ranks)) if at_root else None
    of_shares: dict[str, tuple[torch.Tensor, Callable[[], object]]] = {
        "all_gather": (share, lambda: dist.all_gather_into_tensor(whole, share)),
        "reduce_scatter": (whole, lambda: dist.reduce_scatter_tensor(share, whole)),
        "all_to_all": (whole, lambda: dist.all_to_all_single(other, whole)),
        "gather": (share, lambda: dist.gather(share, shares, ROOT)),
        "scatter": (whole if at_root else whole[:0], lambda: dist.scatter(share, shares, ROOT)),
    }
    return of_shares[name]


def call_us(data: torch.Tensor, call: Callable[[], object]) -> float:
    data[::LINE_FLOATS] = 0
    dist.barrier()
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e6


def agreed_iterations(us: float, budget_us: float, most: int) -> int:
    slowest = torch.tensor([us], dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    return min(most, max(MIN_ITERATIONS, int(budget_us / slowest.item())))


def main() -> None:
    name, count, most, budget_ms, pin, placement = sys.argv[1:]
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if pin == "1":
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[dist.get_rank() % len(cores)]})
    data, call = collective(name, int(count))
    times = [call_us(data, call)]
    begin = time.perf_counter()
    times.append(call_us(data, call))
    iterations = agreed_iterations(
        (time.perf_counter() - begin) * 1e6, float(budget_ms) * 1e3, int(most)
    )
    times.extend(call_us(data, call) for _ in range(iterations - 1))
    slowest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if dist.get_rank() == ROOT:
        print(placement, *(f"{us:.3f}" for us in slowest.tolist()), flush=True)
    dist.destroy_process_group()


main()
