"""Run 1: what the GPU and its driver do. Constants and designs follow from it."""

import shutil
import tempfile
from collections.abc import Sequence

from comparison.processes import Failed

from .steps import Bench, Row, Skipped, Step, rows_in, value

PROCESSES = (1, 2, 3, 4)
CONNECTIONS = (1, 8, 32)
MPS_CONTROL = "nvidia-cuda-mps-control"
# Runs a command while the service is there.
SERVED = (
    f'{MPS_CONTROL} -d && "$@"; status=$?; echo quit | {MPS_CONTROL} >/dev/null; exit $status'
)
REGISTERED = "64M"


def copies(bench: Bench) -> None:
    """Rates of the link, by size of the copies and number of processes."""
    for processes in PROCESSES:
        sizes = bench.setup.of("64K,256K,1M,4M,16M,64M", "64K,256K")
        total = bench.setup.of("256M", "1M")
        rows = bench.facts(processes, "copies", f"sizes={sizes}", f"total={total}")
        best = {
            name: max(row.value for row in rows if row.name == f"copies {name}")
            for name in ("down", "up", "duplex")
        }
        measured = ", ".join(f"{name} {rate:.1f}" for name, rate in best.items())
        bench.judge(f"copies of {processes} processes", True, f"{measured} GB/s", "to be measured")


def signals(bench: Bench) -> None:
    """How long both sides take to see each other's words; what enqueuing costs."""
    rows = bench.facts(1, "signals", f"times={bench.setup.of('1000', '20')}")
    there = value(rows, "signal wait and write")
    write = value(rows, "signal write")
    bench.judge("words", True, f"write {write:.1f}, both {there:.1f} us", "to be measured")
    calls = [row for row in rows if row.name == "enqueue"]
    dearest = max(calls, key=lambda row: row.value)
    text = f"at most {dearest.value:.2f} us: {dearest.setting}"
    bench.judge("enqueuing", True, text, "to be measured")


def register(bench: Bench) -> None:
    """Pinning a memfd."""
    size = bench.setup.of(REGISTERED, "1M")
    rows = bench.facts(1, "register", f"bytes={size}")
    slowest = max(row.value for row in rows if row.name == "pin memfd")
    bench.judge("pinning", True, f"{slowest / 1e3:.2f} ms for {size}", "to be measured")


def meanwhile(bench: Bench) -> None:
    """What a stream that waits holds back, by the number of hardware connections."""
    streams = bench.setup.of("2,4,8,16,32,40", "2,8")
    for connections in CONNECTIONS:
        variables = {"CUDA_DEVICE_MAX_CONNECTIONS": str(connections)}
        rows = bench.facts(1, "meanwhile", f"streams={streams}", **variables)
        late = held_back(rows, "copies held back")
        bench.judge(f"copies, {connections} connections", True, late, "to be measured")
        text = blocked_calls(rows)
        bench.judge(f"calls, {connections} connections", True, text, "to be measured")


def held_back(rows: Sequence[Row], name: str) -> str:
    tried = [row for row in rows if row.name == name]
    if not tried:
        raise Failed(f"no row `{name}` was written")
    late = [row for row in tried if row.value]
    texts = [f"{row.value:.0f} at {row.setting.split()[0]}" for row in late]
    return "held back " + (", ".join(texts) or "none")


def blocked_calls(rows: Sequence[Row]) -> str:
    names = [row.name.removeprefix("blocked ") for row in rows if row.name.startswith("blocked ")]
    waiting = [name for name in names if value(rows, f"blocked {name}")]
    if not names:
        raise Failed("no call was tried")
    return "blocked: " + (", ".join(waiting) or "none")


def kernels(bench: Bench) -> None:
    """Kernels of other streams beside one that waits."""
    for connections in CONNECTIONS:
        variables = {"CUDA_DEVICE_MAX_CONNECTIONS": str(connections)}
        rows = bench.torch(1, "kernels", **variables)
        late = held_back(rows, "kernels held back")
        bench.judge(f"kernels, {connections} connections", True, late, "to be measured")


def rounds(bench: Bench) -> None:
    """Data that a word announces, in both directions."""
    count = bench.setup.of("1000000", "2000")
    rows = bench.facts(1, "rounds", f"rounds={count}")
    stale = value(rows, "stale rounds")
    bench.judge("data behind words", stale == 0, f"{stale:.0f} stale of {count}", "0 stale")


def churn(bench: Bench) -> None:
    """Lanes beside a thread that allocates and frees: a wrong order would be a deadlock."""
    sizes = ("bytes=8M",) if not bench.setup.soft else ("bytes=256K", "slot_bytes=16K")
    for ranks in (2, 4):
        rows = bench.facts(ranks, "churn", f"seconds={bench.setup.of('12', '1')}", *sizes)
        wrong, times = value(rows, "churn wrong"), value(rows, "churn rounds")
        measured = f"{wrong:.0f} wrong in {times:.0f} rounds"
        bench.judge(f"churn of {ranks} ranks", wrong == 0, measured, "0 wrong, no deadlock")


def mps(bench: Bench) -> None:
    """The link's rates under CUDA's multi-process service."""
    if bench.setup.soft:
        raise Skipped("the software driver has no MPS")
    if shutil.which(MPS_CONTROL) is None:
        raise Skipped(f"{MPS_CONTROL} is not installed")
    command = bench.job(PROCESSES[-1], bench.setup.facts, "copies")
    with tempfile.TemporaryDirectory() as folder:
        # A service of its own, whatever runs beside.
        places = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        output = bench.output(["sh", "-c", SERVED, "sh", *command], places)
    rows = bench.add(row._replace(setting=f"{row.setting} mps") for row in rows_in(output))
    best = max(row.value for row in rows if row.name == "copies duplex")
    bench.judge("copies of 4 processes, MPS", True, f"duplex {best:.1f} GB/s", "to be measured")


STEPS = [
    Step("rounds", 90, rounds),
    Step("churn", 90, churn),
    Step("copies", 120, copies),
    Step("signals", 45, signals),
    Step("register", 45, register),
    Step("meanwhile", 60, meanwhile),
    Step("kernels", 90, kernels),
    Step("mps", 45, mps),
]
