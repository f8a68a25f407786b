"""Run 3: speed against the link's own rate and against gloo, and beside computation."""

import csv
import statistics
from collections.abc import Callable, Sequence

from .steps import SKIP, Bench, Row, Step, Verdict, value

KIB, MIB = 1 << 10, 1 << 20
# Ringfold and gloo alternate, so that disturbances affect both.
ROUNDS = 3
OF_LIMIT_MIN = 90.0
OF_LIMIT_FROM = 64 * MIB
TIMES_GLOO_MIN = 3.0
TIMES_GLOO_FROM = MIB
MATMUL_MIN = 97.0
RETURN_US_MAX = 200.0
LANE_MAX = 3.0
SHORT_US_MAX = 30.0
HELPERS = range(4)


def sweep(ranks: int) -> Step:
    """All-reduces of all sizes, by ringfold and by gloo in turn."""

    def measure(bench: Bench) -> None:
        perf_rows: list[Row] = []
        gloo_rows: list[Row] = []
        for turn in range(ROUNDS if not bench.setup.soft else 1):
            perf_rows += perf(bench, ranks, turn)
            # gloo does not serve the test device.
            if bench.setup.no_torch is None and not bench.setup.soft:
                gloo_rows += bench.torch(ranks, "gloo", "first=4K", "last=256M", "times=10")
        judge_limit(bench, f"{ranks} ranks", perf_rows)
        judge_short(bench, f"{ranks} ranks", perf_rows)
        judge_gloo(bench, ranks, perf_rows, gloo_rows)

    return Step(f"sweep-{ranks}", 160, measure)


def threads(ranks: int) -> Step:
    """All-reduces of ranks that are threads, which share a context, one by one and in a row."""

    def measure(bench: Bench) -> None:
        one_by_one = perf(bench, ranks, 0, "--threads")
        judge_limit(bench, f"{ranks} threads", one_by_one)
        judge_short(bench, f"{ranks} threads", one_by_one)
        in_a_row = perf(bench, ranks, 0, "--threads", "-z", 0)
        judge_limit(bench, f"{ranks} threads in a row", in_a_row)

    return Step(f"threads-{ranks}", 60, measure)


def helpers(bench: Bench) -> None:
    """How many threads a rank needs for slices of 64 MiB: rows, no criterion."""
    for count in HELPERS:
        perf(bench, 2, 0, "-b", bench.setup.of("64M", "256K"), RINGFOLD_HELPERS=str(count))


def perf(bench: Bench, ranks: int, turn: int, *more: object, **variables: str) -> list[Row]:
    """The rows of one run of the command, in place; `more` overrules sizes."""
    sizes = ("-e", bench.setup.of("256M", "256K"), "-f", 4)
    first = () if "-b" in more else ("-b", "4K")
    on = ("--device", bench.setup.devices, "--ranks", ranks)
    command = [bench.setup.command, "perf", *on, *first, *sizes, *more, "--csv", "-"]
    output = bench.output(command, variables)
    how = "_".join(str(word) for word in (*more, *variables.values()))
    rows = []
    for line in csv.DictReader(output.splitlines()):
        if line["in_place"] == "true":
            setting = f"bytes={line['bytes']} ranks={ranks} turn={turn}"
            setting += f" how={how}" if how else ""
            named = (
                ("time", "median_us", "us"),
                ("limit", "limit_us", "us"),
                ("of limit", "of_limit_percent", "%"),
                ("algbw", "algbw_gbps", "GB/s"),
            )
            rows += [
                Row(f"ringfold {name}", setting, float(line[column]), unit)
                for name, column, unit in named
            ]
    return bench.add(rows)


def bytes_of(row: Row) -> int:
    words = dict(word.split("=") for word in row.setting.split())
    return int(words["bytes"])


def medians(rows: Sequence[Row], name: str) -> dict[int, float]:
    """By size, over all turns."""
    named = [row for row in rows if row.name == name]
    sizes = sorted({bytes_of(row) for row in named})
    return {
        size: statistics.median(row.value for row in named if bytes_of(row) == size)
        for size in sizes
    }


def worst(values: dict[int, float], where: Callable[[int], bool]) -> tuple[int, float] | None:
    """The least value, and its size."""
    chosen = [(size, value) for size, value in values.items() if where(size)]
    return min(chosen, key=lambda each: each[1], default=None)


def judge_limit(bench: Bench, which: str, rows: Sequence[Row]) -> None:
    shares = medians(rows, "ringfold of limit")
    found = worst(shares, lambda size: size >= OF_LIMIT_FROM or bench.setup.soft)
    assert found is not None, "no size was measured"
    size, share = found
    bench.judge_time(
        f"of limit, {which}",
        share >= OF_LIMIT_MIN,
        f"{share:.1f} % at {size // KIB} KiB",
        f">= {OF_LIMIT_MIN:.0f} % from 64 MiB",
    )


def judge_short(bench: Bench, which: str, rows: Sequence[Row]) -> None:
    size, taken = min(medians(rows, "ringfold time").items())
    bench.judge_time(
        f"{size // KIB} KiB, {which}",
        taken <= SHORT_US_MAX,
        f"{taken:.0f} us",
        f"<= {SHORT_US_MAX:.0f} us",
    )


def judge_gloo(bench: Bench, ranks: int, ours: Sequence[Row], theirs: Sequence[Row]) -> None:
    name, asked = f"gloo's time, {ranks} ranks", f">= {TIMES_GLOO_MIN:.0f} times ringfold's"
    if not theirs:
        bench.say(Verdict(SKIP, name, "none: no times of gloo", asked))
        return
    own, other = medians(ours, "ringfold time"), medians(theirs, "gloo time")
    ratios = {size: other[size] / own[size] for size in own if size in other}
    found = worst(ratios, lambda size: size >= TIMES_GLOO_FROM)
    assert found is not None, "no size was measured by both"
    size, ratio = found
    measured = f"{ratio:.1f} times at {size // KIB} KiB"
    bench.judge_time(name, ratio >= TIMES_GLOO_MIN, measured, f"{asked} from 1 MiB")


def beside(bench: Bench) -> None:
    """A matrix product of 8192³ with and without all-reduces beside it."""
    rows = bench.torch(2, "beside")
    share = 100 * value(rows, "matmul alone") / value(rows, "matmul beside")
    measured = f"{share:.1f} % of the rate alone"
    bench.judge_time("matmul beside", share >= MATMUL_MIN, measured, f">= {MATMUL_MIN:.0f} %")


def returns(bench: Bench) -> None:
    """How long a call holds its caller."""
    taken = value(bench.torch(2, "returns"), "call returns")
    bench.judge_time(
        "return of 64 MiB", taken <= RETURN_US_MAX, f"{taken:.0f} us", f"<= {RETURN_US_MAX:.0f} us"
    )


def lane(bench: Bench) -> None:
    """Processor time of the lane's thread while it waits for computation."""
    share = value(bench.torch(2, "waits"), "lane thread")
    measured, asked = f"{share:.1f} % of a core", f"<= {LANE_MAX:.0f} % while it waits"
    bench.judge_time("lane's thread", share <= LANE_MAX, measured, asked)


STEPS = [
    sweep(2),
    threads(2),
    Step("beside", 60, beside),
    Step("returns", 45, returns),
    Step("lane", 45, lane),
    threads(4),
    sweep(4),
    Step("helpers", 40, helpers),
]
