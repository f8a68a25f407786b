"""Run 2: results on the GPU, through torch, too; and what a death leaves."""

import os
import random
import re
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from comparison.processes import Failed, end_descendants

from .steps import Bench, Row, Skipped, Step, value

COLLECTIVES = (
    "all_reduce broadcast reduce all_gather reduce_scatter gather scatter all_to_all sendrecv"
).split()
# Column of `ringfold perf --csv`.
WRONG = "wrong"
SANITIZER = "compute-sanitizer"
# What it ends with where it finds an error.
SANITIZER_STATUS = 9
DRAIN_MS_MAX = 15.0
KILLED_RANKS = 4
LOOK_S = 0.005


def conformance(ranks: int) -> Step:
    """Every collective with every type, operation and root, of odd sizes and many slices."""

    def measure(bench: Bench) -> None:
        sizes = ("-b", 1, "-e", "400K", "-i", bench.setup.of("57333", "399000"))
        slots = ("--slot-bytes", "16K", "--slots", 2 if ranks % 2 == 0 else 4)
        checked = ("-d", "all", "-o", "all", "-r", "all", "-n", 1, "-w", 0, "-c", 1)
        # On the software driver each of them with some number of ranks.
        for collective in COLLECTIVES[ranks - 1 :: 4] if bench.setup.soft else COLLECTIVES:
            on = ("--device", bench.setup.devices, "--ranks", ranks)
            output = bench.output(
                [bench.setup.command, "perf", collective, *on, *sizes, *slots, *checked]
                + ["--csv", "-"]
            )
            lines = output.splitlines()
            column = lines[0].split(",").index(WRONG)
            wrong = sum(int(line.split(",")[column] or 0) for line in lines[1:])
            name = f"{collective} of {ranks} ranks"
            bench.add([Row(name, f"calls={len(lines) - 1}", wrong, "elements")])
            measured = f"{wrong} wrong elements in {len(lines) - 1} calls"
            bench.judge(name, wrong == 0 and len(lines) > 1, measured, "0 wrong elements")

    return Step(f"conformance-{ranks}", 100, measure)


def kills(bench: Bench) -> None:
    """Ranks of which one is killed while calls are under way: streams go on, results are none."""
    seed = int(os.environ.get("TEST_SEED", random.randrange(1 << 32)))
    print(f"kills: TEST_SEED={seed}", flush=True)
    chance, times = random.Random(seed), int(bench.setup.of("8", "2"))
    slowest, wrong = 0.0, 0
    for trial in range(times):
        victim = trial % KILLED_RANKS
        drained, elements = killed(bench, victim, chance.uniform(0, 0.05))
        bench.add([Row("drained after a kill", f"victim={victim}", drained, "ms")])
        slowest, wrong = max(slowest, drained), wrong + elements
    measured = f"{wrong} plausible elements in {times} kills"
    bench.judge("results after a kill", wrong == 0, measured, "0 plausible elements")
    bench.judge_time(
        "streams after a kill",
        slowest <= DRAIN_MS_MAX,
        f"drained in {slowest:.1f} ms at most",
        f"<= {DRAIN_MS_MAX:.0f} ms",
    )


def killed(bench: Bench, victim: int, after_s: float) -> tuple[float, int]:
    """Milliseconds from the death until the last stream is empty; elements that look like results
    and are none.
    """
    variables = os.environ | {
        "RINGFOLD_WORLD_SIZE": str(KILLED_RANKS),
        "RINGFOLD_ADDR": f"unix:@ringfold-gpu-{uuid.uuid4().hex}",
    }
    sizes = bench.setup.of("bytes=64M", "bytes=1M slot_bytes=64K").split()
    command = [str(bench.setup.facts), "held", *sizes]
    with TemporaryDirectory() as folder:
        files = [Path(folder) / str(rank) for rank in range(KILLED_RANKS)]
        try:
            # Without a launcher, which would end the others.
            processes = [
                subprocess.Popen(
                    command,
                    env=variables | {"RINGFOLD_RANK": str(rank)},
                    stdin=subprocess.DEVNULL,
                    stdout=file.open("wb"),
                    stderr=subprocess.STDOUT,
                )
                for rank, file in enumerate(files)
            ]
            wait(bench, files, "running")
            time.sleep(after_s)
            died_ns = time.monotonic_ns()
            processes[victim].send_signal(signal.SIGKILL)
            others = [file for rank, file in enumerate(files) if rank != victim]
            wait(bench, others, "error")
            return (
                max(number(file, "drained") - died_ns for file in others) / 1e6,
                sum(number(file, "wrong") for file in others),
            )
        finally:
            end_descendants()


def wait(bench: Bench, files: Sequence[Path], word: str) -> None:
    """Wait until each file has a line that begins with the word."""
    line = re.compile(rf"^{word}\b", re.MULTILINE)
    while missing := [file for file in files if not line.search(file.read_text())]:
        if bench.left_s() == 0:
            said = " | ".join(missing[0].read_text().splitlines()[-3:])
            raise Failed(f"rank {missing[0].name} did not get to `{word}`: {said or 'no output'}")
        time.sleep(LOOK_S)


def number(file: Path, word: str) -> int:
    found = re.search(rf"^{word} (\d+)$", file.read_text(), re.MULTILINE)
    if found is None:
        raise Failed(f"rank {file.name} wrote no `{word}`: {file.read_text()}")
    return int(found[1])


def streams(bench: Bench) -> None:
    """Asynchronous calls on side streams, whose tensors are reused at once."""
    rounds = bench.setup.of("300", "40")
    wrong = value(bench.torch(2, "streams", f"rounds={rounds}"), "streams wrong")
    bench.judge("side streams", wrong == 0, f"{wrong:.0f} wrong tensors", "0 wrong tensors")


def training(what: str, asked: str) -> Step:
    """Training over ringfold and over gloo."""

    def measure(bench: Bench) -> None:
        for ranks in (2, 4):
            rows = bench.torch(ranks, what)
            differ, loss = value(rows, f"{what} differs"), value(rows, f"{what} loss")
            measured = f"{differ:.0f} parameters differ, loss {loss:.4f}"
            bench.judge(f"{what} of {ranks} ranks", differ == 0, measured, asked)

    return Step(what, 100, measure)


def memcheck(bench: Bench) -> None:
    """The device's memory errors, as CUDA's tool sees them."""
    if bench.setup.soft:
        raise Skipped("the software driver ends a program that accesses wrong memory")
    if shutil.which(SANITIZER) is None:
        raise Skipped(f"{SANITIZER} is not installed")
    # Not calls that the driver refuses: some ask whether it does.
    only = ("--tool", "memcheck", "--report-api-errors", "no")
    tool = (SANITIZER, *only, "--error-exitcode", SANITIZER_STATUS)
    rows = bench.ranks(2, *tool, bench.setup.facts, "churn", "seconds=5", "bytes=1M")
    wrong = value(rows, "churn wrong")
    bench.judge("memcheck", wrong == 0, f"{wrong:.0f} wrong, no memory error", "no error")


# What no other test can show comes first.
STEPS = [
    conformance(2),
    Step("kills", 90, kills),
    Step("streams", 60, streams),
    training("ddp", "0 differ from gloo"),
    training("fsdp", "0 differ from gloo"),
    Step("memcheck", 60, memcheck),
    *(conformance(ranks) for ranks in (4, 3, 1)),
]
