#!/usr/bin/env python3
"""A reduce_scatter that bypasses a slow rank, simulated.

Zhang, Deng, Song, Xue, Guo & Huang, Communication Optimization Technology of Distributed Machine
Learning Network, 2024.

Four ranks in a ring, chunks of 8 KiB, links of 5 µs and 100 Gbit/s, reductions of T = 3 µs. One
reduction, the first of rank B, takes T + ΔT. When T + ΔT > αT, rank C sends its part to D without
waiting, B sends its sum to D as well, and D reduces both at once. Two closed forms give the
savings. They are measured in two ways that the paper does not distinguish: on the *path* of the one
late chunk, until D has it, and for the *whole* reduce_scatter, which cannot end before the other
chunks have gone around.
"""

from typing import Any, NamedTuple

from paper import Curve, Outputs

# Times are in picoseconds, as in the simulator, so that they can be compared exactly.
US = 1_000_000
RANKS = 4
REDUCE = 3 * US
TRANSFER = 5 * US + 8192 * 80
OWNER = 3
"""The rank that owns the late chunk: D."""

# α is in tenths throughout.
TABLE_ALPHA = 18
"""The one with the 25.3 % (see docs/explanation/papers.md)."""
BEST_DELAY = 8 * US
TABLE_DELAYS = [us * US for us in (2, 3, 5, 6, 7, 8, 9, 10, 15, 20, 30)]
FIGURE_8_ALPHAS = [12, 15, 18, 20, 25, 30]
FIGURE_9_DELAYS = [us * US for us in (5, 8, 10, 15, 20)]
FIGURE_10_ALPHAS = [18, 25, 30]

HALF_US_STEPS = [step * US // 2 for step in range(25)]
FIGURES = {
    "7, 8": sorted(
        {(alpha, delay) for alpha in FIGURE_8_ALPHAS for delay in HALF_US_STEPS}
        | {(TABLE_ALPHA, delay) for delay in TABLE_DELAYS}
    ),
    "9": [(alpha, delay) for delay in FIGURE_9_DELAYS for alpha in range(11, 36)],
    "10": [(alpha, us * US) for alpha in FIGURE_10_ALPHAS for us in range(10, 61, 2)],
}
"""The points of each figure as (α, ΔT)."""

CONTRADICTIONS = """\
#
# Where the paper contradicts itself (docs/explanation/papers.md says more):
# * It prints two triggers, T + ΔT > αT and T + ΔT > αT + Ttrans. With the second, equation (2) is
#   never reached.
# * The captions of figures 5 and 6 are swapped against its text.
# * Equations (1) and (2) are about one chunk's path. The whole reduce_scatter cannot end before the
#   other chunks are around, so it saves at most ΔT; the effect on it falls with α only for α > 2.
# * It is exact only while both ranks know T, Ttrans and α and agree on the time: nothing tells B
#   that C gave up."""


class Times(NamedTuple):
    """The times of one setting."""

    ring: int
    """The ring's reduce_scatter."""
    path: int
    """Until D has the late chunk, by the paper's rule."""
    whole: int
    """The whole reduce_scatter by the paper's rule, reductions side by side."""
    serial: int
    """The same if a rank runs one reduction at a time."""

    def effect(self, time: int) -> float:
        """The savings relative to the ring's time, in percent."""
        return 100 * (self.ring - time) / self.ring


Points = dict[tuple[int, int], Times]


def saving(alpha: int, delay: int) -> int:
    """The savings on the late chunk's path: the paper's equations (1) and (2)."""
    patience = alpha * REDUCE // 10
    if REDUCE + delay <= patience:
        return 0
    if REDUCE + delay > patience + TRANSFER:
        return REDUCE + TRANSFER
    return delay + 2 * REDUCE - patience


def closed_form(alpha: int, delay: int) -> Times:
    """The point by the closed forms."""
    undisturbed = (RANKS - 1) * (REDUCE + TRANSFER)
    ring = undisturbed + delay
    saved = saving(alpha, delay)
    # With one reduction at a time, the slow rank's next chunk is late, too, and no rank bypasses
    # that.
    serial = max(ring - min(saved, TRANSFER), undisturbed) if saved else ring
    return Times(ring, ring - saved, max(ring - saved, undisturbed), serial)


def picoseconds(us: float) -> int:
    return round(us * US)


def sweep(outputs: Outputs, delays: list[int], *arguments: str) -> dict[int, list[dict[str, Any]]]:
    """Simulations with the arguments by ΔT."""
    values = ",".join(f"{delay / US}us" for delay in delays)
    found = outputs.simulate("--sweep", f"delay={values}", *arguments)
    each = len(found) // len(delays)
    return {delay: found[at * each : (at + 1) * each] for at, delay in enumerate(delays)}


def simulate(outputs: Outputs) -> Points:
    """Every point of every figure."""
    pairs = {pair for figure in FIGURES.values() for pair in figure}
    rings = sweep(outputs, sorted({delay for _, delay in pairs}), "--policy", "off")
    points = {}
    for alpha in sorted({alpha for alpha, _ in pairs}):
        delays = sorted(delay for of, delay in pairs if of == alpha)
        by_rule = ["--set", f"alpha_threshold={alpha / 10}", "--compare", "server=parallel,serial"]
        for delay, (parallel, serial) in sweep(outputs, delays, *by_rule).items():
            late = next(chunk for chunk in parallel["chunks"] if chunk["owner"] == OWNER)
            points[alpha, delay] = Times(
                ring=picoseconds(rings[delay][0]["results_us"]),
                path=picoseconds(late["complete_us"]),
                whole=picoseconds(parallel["results_us"]),
                serial=picoseconds(serial["results_us"]),
            )
    return points


def all_reduce(outputs: Outputs) -> tuple[int, int]:
    """The whole all_reduce at the point of the 25.3 %: the ring's time, and by the paper's rule."""
    ring, strategy = outputs.simulate("--set", "collective=all_reduce", "--compare", "off,next2")
    return picoseconds(ring["time_us"]), picoseconds(strategy["time_us"])


def us(time: int) -> str:
    """Microseconds with the five digits of the publication."""
    return f"{time / US:.5f}"


def table(points: Points) -> str:
    """Figures 7 and 8 at one α."""
    text = f"""\
#
# Figures 7 and 8 at α = {TABLE_ALPHA / 10}. The effect is the share of the ring's time saved,
#   path    until D has the chunk that was late: what the paper plots
#   whole   until all ranks have their chunks, reductions of a rank side by side
#   serial  the same, reductions of a rank one after the other
"""
    text += "#  ΔT (us)    ring (us)"
    text += "".join(f"  {f'{name} (us)':>12}  effect (%)" for name in ("path", "whole", "serial"))
    text += "\n"
    for delay in TABLE_DELAYS:
        times = points[TABLE_ALPHA, delay]
        text += f"  {delay // US:>8}  {us(times.ring):>11}"
        for time in times[1:]:
            text += f"  {us(time):>12}  {times.effect(time):>10.3f}"
        text += "\n"
    return text


def over_alpha(points: Points) -> str:
    """Figures 9 and 10: a line for each α, a column for each ΔT."""
    text = "#\n# Figures 9 and 10: the effect (%) on the path by α and ΔT; equal along α where\n"
    text += "# B's message comes last\n#      α"
    text += "".join(f"  {f'ΔT {delay // US} us':>9}" for delay in FIGURE_9_DELAYS) + "\n"
    for alpha in range(11, 36, 2):
        cells = (points[alpha, delay] for delay in FIGURE_9_DELAYS)
        row = "".join(f"  {times.effect(times.path):>9.3f}" for times in cells)
        text += f"  {alpha / 10:>6}{row}\n"
    return text


def best(points: Points, whole: tuple[int, int]) -> str:
    """The figure in the abstract, and what it is relative to."""
    times = points[TABLE_ALPHA, BEST_DELAY]
    path, rest, serial = (times.effect(time) for time in times[1:])
    shortened = 100 * (whole[0] - whole[1]) / whole[0]
    return f"""\
#
# The abstract's 25.3 %: α = {TABLE_ALPHA / 10}, ΔT = {BEST_DELAY // US} us, on the path of the
# late chunk: {path:.3f} %. At this point the whole reduce_scatter
# saves {rest:.3f} % ({serial:.3f} % with serial reductions), and a whole all_reduce, whose second
# half nothing shortens, {shortened:.3f} %: {us(whole[1])} us instead of {us(whole[0])} us.
"""


def agreement(points: Points) -> str:
    """The difference between simulation and closed forms."""
    count, worst = 0, 0
    for pair in (pair for figure in FIGURES.values() for pair in figure):
        for found, due in zip(points[pair], closed_form(*pair), strict=True):
            worst = max(worst, abs(found - due))
            count += 1
    return f"""\
#
# {count} times were simulated; from the closed forms they are at most {worst} ps away.
"""


def draw(outputs: Outputs, points: Points) -> None:
    """Figures 7 to 10."""
    whole = [delay for delay in HALF_US_STEPS + TABLE_DELAYS if delay % US == 0]
    seven = {
        "ring": "o-",
        "strategy, path of the late chunk": "o-",
        "strategy, whole reduce_scatter": "s--",
        "the same, serial reductions": "s--",
    }
    curves = [
        Curve(
            label,
            style,
            [(delay / US, points[TABLE_ALPHA, delay][at] / US) for delay in sorted(set(whole))],
        )
        for at, (label, style) in enumerate(seven.items())
    ]
    title = f"Figure 7: reduce_scatter of a ring with one slow reduction, α = {TABLE_ALPHA / 10}"
    outputs.draw("figure-7", title, ("ΔT (µs)", "time (µs)"), curves)

    def effects(label: str, pairs: list[tuple[int, int]], over_delay: bool) -> Curve:
        x = [delay / US if over_delay else alpha / 10 for alpha, delay in pairs]
        y = [points[pair].effect(points[pair].path) for pair in pairs]
        return Curve(label, "o-", list(zip(x, y, strict=True)))

    effect = "effect (% of the ring's time)"
    eight = [
        effects(f"α = {of / 10}", [(of, delay) for delay in HALF_US_STEPS], over_delay=True)
        for of in FIGURE_8_ALPHAS
    ]
    title = "Figure 8: the effect on the late chunk's path over ΔT and α"
    outputs.draw("figure-8", title, ("ΔT (µs)", effect), eight)
    nine = [
        effects(f"ΔT = {of // US} µs", [(a, of) for a in range(11, 36)], over_delay=False)
        for of in FIGURE_9_DELAYS
    ]
    title = "Figure 9: the effect on the late chunk's path over α"
    outputs.draw("figure-9", title, ("α", effect), nine)
    ten = [
        effects(f"α = {of / 10}", [at for at in FIGURES["10"] if at[0] == of], over_delay=True)
        for of in FIGURE_10_ALPHAS
    ]
    title = "Figure 10: the effect on the late chunk's path over large ΔT"
    outputs.draw("figure-10", title, ("ΔT (µs)", effect), ten)


def row(figure: str, alpha: int, delay: int, times: Times) -> dict[str, Any]:
    columns: dict[str, Any] = {"figure": figure, "alpha": alpha / 10}
    columns["delay_us"] = f"{delay / US:.6f}"
    for name, time in times._asdict().items():
        columns[f"{name}_us"] = f"{time / US:.6f}"
        if name != "ring":
            columns[f"{name}_effect_percent"] = f"{times.effect(time):.3f}"
    return columns


def main() -> None:
    outputs = Outputs("bupt2024", __doc__)
    points = simulate(outputs)
    whole = all_reduce(outputs)
    heading = f"""\
# Zhang et al., Communication Optimization Technology of Distributed Machine Learning Network, 2024
# reduce_scatter in a ring of {RANKS} ranks, T {REDUCE // US}us, Ttrans {us(TRANSFER)}us; the first
# reduction of rank 1 (B) takes T + ΔT. The rule: when T + ΔT > αT, C sends what it has to D, B
# sends its sum to D, and D reduces both at once.
"""
    text = heading + table(points) + over_alpha(points) + best(points, whole) + agreement(points)
    rows = [
        row(name, alpha, delay, points[alpha, delay])
        for name, pairs in FIGURES.items()
        for alpha, delay in pairs
    ]
    numbers = [
        {
            "figure": name,
            "alpha": alpha / 10,
            "delay_us": delay / US,
            **{f"{key}_us": time / US for key, time in points[alpha, delay]._asdict().items()},
        }
        for name, pairs in FIGURES.items()
        for alpha, delay in pairs
    ]
    document = {
        "reduce_us": REDUCE / US,
        "transfer_us": TRANSFER / US,
        "points": numbers,
        "all_reduce": {"ring_us": whole[0] / US, "strategy_us": whole[1] / US},
    }
    outputs.write(text + CONTRADICTIONS, rows, document)
    draw(outputs, points)


if __name__ == "__main__":
    main()
