"""Times gloo's all_reduce as `ringfold perf --rewrite` times its own; see allreduce_mpi.c.

Usage: allreduce_gloo.py ITERATIONS BYTES...   In place, as torch.distributed has it.
"""

import sys
import time

import torch
import torch.distributed as dist

LINE_FLOATS = 16


def call_us(data: torch.Tensor) -> float:
    data[::LINE_FLOATS] = 0
    dist.barrier()
    begin = time.perf_counter()
    dist.all_reduce(data)
    return (time.perf_counter() - begin) * 1e6


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    iterations = int(sys.argv[1])
    for size in map(int, sys.argv[2:]):
        data = torch.zeros(size // 4)
        times = torch.tensor([call_us(data) for _ in range(iterations + 1)], dtype=torch.float64)
        dist.all_reduce(times, op=dist.ReduceOp.MAX)
        if dist.get_rank() == 0:
            print(size, *(f"{time:.3f}" for time in times.tolist()), flush=True)
    dist.destroy_process_group()


main()
