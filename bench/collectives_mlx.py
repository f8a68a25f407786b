"""Times MLX's all-reduce over its ring of sockets, with output and rules of collectives_mpi.c.

Usage: collectives_mlx.py COUNT ITERATIONS BUDGET_MS PIN, started by `mlx.launch --backend ring`.

Arrays of MLX do not change: instead of rewriting the input, each call has a new one, made and
written before the time begins. The result is a new array, so the placement is out of place.
"""

import os
import sys
import time

import mlx.core as mx
import numpy as np

MIN_ITERATIONS = 3
# Period of the input of a checked call: sums stay exact.
PERIOD = 1024


def all_sum(values: "np.ndarray[tuple[int], np.dtype[np.float32]]") -> tuple[float, mx.array]:
    """Return the time of a call on these values, in microseconds, and its result."""
    data = mx.array(values)
    mx.eval(data, mx.distributed.all_sum(mx.zeros(1)))
    begin = time.perf_counter()
    result = mx.distributed.all_sum(data)
    mx.eval(result)
    return (time.perf_counter() - begin) * 1e6, result


def slowest(times: list[float]) -> list[float]:
    """Return the slowest rank's times."""
    most = mx.distributed.all_max(mx.array(times))
    mx.eval(most)
    return [float(us) for us in most.tolist()]


def main() -> None:
    count, most, budget_ms, pin = (int(word) for word in sys.argv[1:])
    group = mx.distributed.init(strict=True, backend="ring")
    rank, ranks = group.rank(), group.size()
    if pin:
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    values = np.zeros(count, np.float32)
    all_sum(values[:1])
    times = [all_sum(values)[0]]
    begin = time.perf_counter()
    times.append(all_sum(values)[0])
    (us,) = slowest([(time.perf_counter() - begin) * 1e6])
    iterations = min(most, max(MIN_ITERATIONS, int(budget_ms * 1e3 / us)))
    times.extend(all_sum(values)[0] for _ in range(iterations - 1))
    phase = np.arange(count, dtype=np.float32) % PERIOD
    _, result = all_sum(phase + rank)
    if not np.array_equal(np.array(result), ranks * (ranks - 1) // 2 + ranks * phase):
        sys.exit(f"the sum is wrong on rank {rank}")
    times = slowest(times)
    if rank == 0:
        print("out", *(f"{us:.3f}" for us in times), flush=True)


main()
