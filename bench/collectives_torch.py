"""Times a collective on torch's tensors, with output and rules of collectives_mpi.c.

Usage: collectives_torch.py LIBRARY COLLECTIVE COUNT ITERATIONS BUDGET_MS PIN PLACEMENT

LIBRARY is gloo or ringfold (the calls of torch.distributed), vllm or deepspeed (the operators that
these register with torch). PIN is 1 to bind each rank to a core. Placements are those of torch:
all_reduce, broadcast and reduce in place, the others out of place.
"""

import importlib.util
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist

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
    """An all-reduce that a serving framework registers with torch, in shared memory.

    It has no barrier. A call on one cache line is one exchange between all ranks, which leaves them
    closer together than gloo's barrier does.
    """

    def __init__(self) -> None:
        self.all_reduce = self.load()
        self.line = torch.zeros(LINE_FLOATS)

    def load(self) -> Callable[[torch.Tensor], object]:
        raise NotImplementedError

    def barrier(self) -> None:
        self.all_reduce(self.line)

    def work(self, name: str, count: int) -> Work:
        assert name == "all_reduce", name
        data = torch.zeros(count)
        return data, lambda: self.all_reduce(data)


class Vllm(Operator):
    """vLLM's operator, without the rest of vLLM, which needs many more packages."""

    def load(self) -> Callable[[torch.Tensor], object]:
        found = importlib.util.find_spec("vllm")
        assert found and found.submodule_search_locations
        (library,) = Path(found.submodule_search_locations[0]).glob("_C_AVX512*.so")
        torch.ops.load_library(str(library))
        rank, ranks, threads = dist.get_rank(), dist.get_world_size(), torch.get_num_threads()
        group = f"peers-{os.environ['MASTER_PORT']}"
        handle = torch.ops._C.init_shm_manager(group, ranks, rank, threads)
        dist.barrier()
        torch.ops._C.join_shm_manager(handle, group)
        dist.barrier()
        return lambda data: torch.ops._C.shm_allreduce(handle, data)


class DeepSpeed(Operator):
    """DeepSpeed's operator, compiled on the first run."""

    def load(self) -> Callable[[torch.Tensor], object]:
        # Without this variable, the operator returns the input as it is.
        os.environ["LOCAL_SIZE"] = str(dist.get_world_size())
        from deepspeed.ops.op_builder.cpu import ShareMemCommBuilder

        ShareMemCommBuilder().load(verbose=False).initialize(dist.get_world_size(), dist.get_rank())
        return lambda data: torch.ops.deepspeed.inference_all_reduce_(data)


LIBRARIES: dict[str, Callable[[], Distributed | Operator]] = {
    "gloo": Distributed,
    "ringfold": Distributed,
    "vllm": Vllm,
    "deepspeed": DeepSpeed,
}


def call_us(library: Distributed | Operator, work: Work) -> float:
    data, call = work
    data[::LINE_FLOATS] = 0
    library.barrier()
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
    library = LIBRARIES[chosen]()
    work = library.work(name, int(count))
    # The first barrier may be slower than the others, and is not part of the first call.
    library.barrier()
    times = [call_us(library, work)]
    begin = time.perf_counter()
    times.append(call_us(library, work))
    iterations = agreed_iterations(
        (time.perf_counter() - begin) * 1e6, float(budget_ms) * 1e3, int(most)
    )
    times.extend(call_us(library, work) for _ in range(iterations - 1))
    if name == "all_reduce":
        check(*work)
    slowest = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    if dist.get_rank() == ROOT:
        print(placement, *(f"{us:.3f}" for us in slowest.tolist()), flush=True)
    dist.destroy_process_group()


main()
