#!/usr/bin/env python3
"""Compares ringfold with gloo below torch's distributed checkpoints and collectives of objects.

    .venv/bin/python bench/checkpoint.py                # 1 GiB by 4 ranks, saved and loaded
    .venv/bin/python bench/checkpoint.py --ranks 2 --tensors 16 --tensor-bytes 1M --rounds 3
    .venv/bin/python bench/checkpoint.py --what objects --ranks 2

Needs torch and this tree's wheel in the Python that runs it. The backends alternate in the same
processes; the slowest rank counts. Checkpoints are written to --folder, by default in memory, so
that the disk does not count. `objects` are collectives of small objects and of 1 MiB each; their
`torch` is torch's own function over ringfold, which exchanges lengths first. Rows are medians, and
are written to bench/results/DATE-MACHINE/ as CSV.
"""

import argparse
import csv
import json
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from comparison import libraries, machine
from comparison.processes import become_reaper, output_of
from peers import count, size

LIMIT_S = 3000.0
SMALL_REPEATS, LARGE_REPEATS = 30, 5
SMALL, LARGE = "x" * 100, "x" * (1 << 20)
Calls = dict[str, Callable[[], object]]


def checkpoints(plan: dict[str, Any], dist: Any, gloo: Any) -> dict[str, Calls]:
    """Return each backend's save and load; what is loaded is compared with what was saved."""
    import torch
    import torch.distributed.checkpoint as dcp

    rank, elements = dist.get_rank(), plan["tensor_bytes"] // 4
    mine = {
        f"rank {rank} tensor {index}": torch.full((elements,), float(rank + index))
        for index in range(plan["tensors"])
    }
    folder = Path(plan["folder"])

    def save(backend: str, group: Any) -> None:
        dcp.save(mine, checkpoint_id=folder / backend, process_group=group)

    def load(backend: str, group: Any) -> None:
        found = {name: torch.zeros_like(tensor) for name, tensor in mine.items()}
        dcp.load(found, checkpoint_id=folder / backend, process_group=group)
        assert all(torch.equal(found[name], tensor) for name, tensor in mine.items())

    return {
        call.__name__: {
            name: lambda call=call, name=name, group=group: call(name, group)  # type: ignore[misc]
            for name, group in (("ringfold", None), ("gloo", gloo))
        }
        for call in (save, load)
    }


def objects(dist: Any, gloo: Any) -> dict[str, Calls]:
    """Return each way's calls of every collective, by the collective and the object's size."""
    rank, ranks = dist.get_rank(), dist.get_world_size()

    def calls(thing: Any, group: Any, is_torchs: bool) -> Calls:
        def of(function: Any) -> Any:
            return function.__wrapped__ if is_torchs else function

        at_root = [thing] * ranks if rank == 0 else None
        filled = [None] * ranks
        return {
            "all_gather": lambda: of(dist.all_gather_object)(filled, thing, group=group),
            "gather": lambda: of(dist.gather_object)(
                thing, filled if rank == 0 else None, 0, group=group
            ),
            "broadcast": lambda: of(dist.broadcast_object_list)([thing], 0, group=group),
            "scatter": lambda: of(dist.scatter_object_list)([None], at_root, 0, group=group),
        }

    found: dict[str, Calls] = {}
    for text, thing in (("small", SMALL), ("1 MiB", LARGE)):
        for way, group, is_torchs in (
            ("ringfold", None, False), ("torch", None, True), ("gloo", gloo, True)
        ):  # fmt: skip
            for name, call in calls(thing, group, is_torchs).items():
                found.setdefault(f"{name} {text}", {})[way] = call
    return found


def be_rank(plan: dict[str, Any]) -> None:
    """Time all calls in turn; rank 0 prints a line of JSON with the slowest rank's times."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("ringfold")
    gloo = dist.new_group(backend="gloo")
    is_checkpoint = plan["what"] == "checkpoint"
    every = checkpoints(plan, dist, gloo) if is_checkpoint else objects(dist, gloo)
    for turn in range(plan["rounds"]):
        for name, calls in every.items():
            repeats = 1 if is_checkpoint else SMALL_REPEATS if "small" in name else LARGE_REPEATS
            order = list(calls)[turn % len(calls) :] + list(calls)[: turn % len(calls)]
            for way in order:
                times = []
                # The first call finds nothing in caches.
                for _ in range(repeats if is_checkpoint else repeats + 1):
                    dist.barrier()
                    begin = time.perf_counter()
                    calls[way]()
                    times.append((time.perf_counter() - begin) * 1e6)
                slowest = torch.tensor(times[-repeats:], dtype=torch.float64)
                dist.all_reduce(slowest, dist.ReduceOp.MAX)
                if dist.get_rank() == 0:
                    line = {"call": name, "library": way, "times_us": slowest.tolist()}
                    print(json.dumps(line), flush=True)
    dist.destroy_process_group()


def rows_of(lines: list[dict[str, Any]], facts: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for each call and library, with the ratio of ringfold's median to its."""
    taken: dict[tuple[str, str], list[list[float]]] = {}
    for line in lines:
        taken.setdefault((line["call"], line["library"]), []).append(line["times_us"])
    medians = {key: statistics.median(sum(times, [])) for key, times in taken.items()}
    return [
        {
            **facts,
            "call": call,
            "library": library,
            "rounds": len(times),
            "median_us": round(medians[call, library], 1),
            "quickest_round_us": round(min(map(statistics.median, times)), 1),
            "slowest_round_us": round(max(map(statistics.median, times)), 1),
            "ringfold_ratio": float(f"{medians[call, 'ringfold'] / medians[call, library]:.3g}"),
        }
        for (call, library), times in taken.items()
    ]


def parser() -> argparse.ArgumentParser:
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = flags.add_argument
    add("--what", choices=("checkpoint", "objects"), default="checkpoint")
    add("--ranks", type=count, default=4, help="(default 4)")
    add("--rounds", type=count, default=5, help="(default 5)")
    add("--tensors", type=count, default=64, help="tensors of each rank (default 64)")
    add("--tensor-bytes", type=size, default="4M", help="size of each tensor (default 4M)")
    add("--folder", type=Path, default=Path("/dev/shm"), help="(default /dev/shm)")
    add("--csv", help="file for the rows instead of the one in bench/results; none writes none")
    return flags


def main() -> None:
    if sys.argv[1:2] == ["--plan"]:
        be_rank(json.loads(sys.argv[2]))
        return
    options = parser().parse_args()
    become_reaper()
    if not libraries.COMMAND.exists():
        libraries.build_ringfold()
    folder = tempfile.mkdtemp(dir=options.folder)
    names = ("what", "rounds", "tensors", "tensor_bytes")
    plan = {name: getattr(options, name) for name in names} | {"folder": folder}
    run = [libraries.COMMAND, "run", "--ranks", options.ranks, "--no-prefix", "--"]
    words = [sys.executable, "-W", "ignore", __file__, "--plan", json.dumps(plan)]
    try:
        variables = {"OMP_NUM_THREADS": "1", "RINGFOLD_BIND": "none"}
        output = output_of([*run, *words], LIMIT_S, variables)
    finally:
        shutil.rmtree(folder)
    lines = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    facts = {"ranks": options.ranks, "commit": libraries.ringfold_version()}
    if options.what == "checkpoint":
        facts |= {"bytes": options.ranks * options.tensors * options.tensor_bytes}
    rows = rows_of(lines, facts)
    for row in rows:
        print(f"{row['call']:<18} {row['library']:<9} {row['median_us']:>12.1f} us "
              f"[{row['quickest_round_us']:.1f}, {row['slowest_round_us']:.1f}] "
              f"ringfold/it {row['ringfold_ratio']:.3g}")  # fmt: skip
    if options.csv != "none":
        name = f"torch-{options.what}-{options.ranks}-ranks.csv"
        file = Path(options.csv or machine.folder(libraries.BENCH / "results") / name)
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("w", newline="") as rows_file:
            writer = csv.DictWriter(rows_file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
        print(f"rows: {file}", file=sys.stderr)


if __name__ == "__main__":
    main()
