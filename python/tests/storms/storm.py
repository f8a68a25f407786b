"""Common part of all storms: rounds from seeds, several at a time, outcomes, and a verdict.

Each round has its own seed. A violation names the seed, and `--rounds 1 --seed S` repeats the
round, as far as timing repeats.
"""

import argparse
import csv
import os
import random
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from multiprocessing.queues import SimpleQueue
from pathlib import Path

import harness
from harness import Ending, Job, Place
from lab import Lab

TRANSPORTS = ("shm", "tcp", "hosts")
# Number of hosts in a storm between hosts.
HOSTS = 3
# Limit on the violations that are printed; one cause may have many.
PRINTED = 20


@dataclass
class Outcome:
    """Outcome of one round."""

    count: int = 0
    """Amount of disturbance, in the storm's own unit."""
    rows: list[tuple[str, float | None]] = field(default_factory=list)
    """Outcomes by name, with the seconds until each occurred, if meaningful."""
    violations: list[str] = field(default_factory=list)
    """Violated guarantees."""


Round = Callable[[int, Place], Outcome]


@dataclass(frozen=True)
class Storm:
    """A storm: its round, and the number of rounds."""

    name: str
    unit: str
    round: Round
    rounds: int
    transports: tuple[str, ...] = TRANSPORTS
    jobs: int = os.cpu_count() or 1
    """Number of rounds at a time."""
    hosts: int = HOSTS
    lab: Callable[[int, int], Lab] | None = None
    """Makes the given number of hosts, from the given first one; network namespaces if `None`."""


def main(storm: Storm, words: list[str] | None = None) -> None:
    """Run a storm with the command line's options; exit with 1 if a guarantee was violated."""
    arguments = parser(storm).parse_args(words)
    # Before the pool makes any thread or descriptor.
    transports = arguments.transport or storm.transports
    results = [run(storm, arguments, transport) for transport in transports]
    sys.exit(not all(results))


def parser(storm: Storm) -> argparse.ArgumentParser:
    """Return the parser of a storm's arguments."""
    parser = argparse.ArgumentParser(
        prog=f"{storm.name}.py", description=sys.modules["__main__"].__doc__
    )
    parser.add_argument(
        "--rounds", type=int, default=storm.rounds, help="rounds on each transport (%(default)s)"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=random.randrange(1 << 30),
        help="the first round's seed (random)",
    )
    parser.add_argument(
        "--transport",
        action="append",
        choices=storm.transports,
        help="only this one; may be repeated",
    )
    parser.add_argument(
        "--jobs", type=int, default=storm.jobs, help="rounds at a time (%(default)s)"
    )
    parser.add_argument("--csv", type=Path, help="write every outcome to this file")
    return parser


def run(storm: Storm, arguments: argparse.Namespace, transport: str) -> bool:
    """Run a storm on one transport and print its table; return whether every guarantee was kept."""
    first, rounds = arguments.seed, arguments.rounds
    command = f"{storm.name}.py --transport {transport}"
    print(f"\n{command} --rounds {rounds} --seed {first}", flush=True)
    begin = time.monotonic()
    total = Outcome()
    with places(storm, transport, arguments.jobs) as where, workers(where) as pool:
        for number, outcome in enumerate(
            pool.map(partial(guarded, storm.round), range(first, first + rounds))
        ):
            total.count += outcome.count
            total.rows += outcome.rows
            for violation in outcome.violations:
                line = f"VIOLATION ({command} --rounds 1 --seed {first + number}): {violation}"
                total.violations.append(line)
                if len(total.violations) <= PRINTED:
                    print(line, flush=True)
    print(table(total.rows))
    if arguments.csv:
        with arguments.csv.open("w", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(("ending", "ms"))
            for name, s in sorted(total.rows, key=lambda row: (row[0], row[1] or 0)):
                writer.writerow((name, "" if s is None else round(1000 * s, 1)))
    broken = len(total.violations)
    seconds = time.monotonic() - begin
    done = f"{total.count} {storm.unit} in {rounds} rounds, {seconds:.0f} s"
    print(f"{transport}: {done}: {broken} violations", flush=True)
    return not broken


# Where this worker's jobs run.
_place: Place


def guarded(round_: Round, seed: int) -> Outcome:
    """Run a round; an exception is a violation, so that the other rounds still run."""
    try:
        return round_(seed, _place)
    except Exception as error:
        return Outcome(violations=[f"the round itself failed: {type(error).__name__}: {error}"])


@contextmanager
def places(storm: Storm, transport: str, count: int) -> Iterator[list[Place]]:
    """Make the places for `count` simultaneous jobs of a storm, each on its own hosts."""
    with ExitStack() as stack:
        if storm.lab or transport == "hosts":
            make = storm.lab or (lambda hosts, _: Lab(hosts))
            labs = [
                stack.enter_context(make(storm.hosts, number * storm.hosts))
                for number in range(count)
            ]
            yield [Place(transport, lab) for lab in labs]
        else:
            yield [Place(transport)] * count


@contextmanager
def workers(where: Sequence[Place]) -> Iterator[ProcessPoolExecutor]:
    """Make the processes that run rounds; each has a single thread, and may fork ranks."""
    context = get_context("fork")
    free: SimpleQueue[Place] = context.SimpleQueue()
    for place in where:
        free.put(place)
    with ProcessPoolExecutor(len(where), context, begin_worker, (free,)) as pool:
        yield pool


def begin_worker(free: "SimpleQueue[Place]") -> None:
    """Prepare a process to run rounds."""
    global _place
    harness.endless()
    _place = free.get()


def table(rows: list[tuple[str, float | None]]) -> str:
    """Return the outcomes by name: their number, and the times until they occurred."""
    times: dict[str, list[float]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    for name, seconds in rows:
        counts[name] += 1
        if seconds is not None:
            times[name].append(seconds)
    lines = [f"{'ending':<40} {'count':>6} {'median':>9} {'p90':>9} {'max':>9}  ms"]
    for name in sorted(counts, key=lambda name: (-counts[name], name)):
        line = f"{name:<40} {counts[name]:>6}"
        if found := sorted(times[name]):
            p90 = found[min(len(found) - 1, len(found) * 9 // 10)]
            line += "".join(
                f" {1000 * value:>9.1f}" for value in (statistics.median(found), p90, found[-1])
            )
        lines.append(line)
    return "\n".join(lines)


def not_begun(job: Job) -> Outcome:
    """Return the outcome of a job whose ranks have not all come up."""
    endings = [str(ending) for ending in job.finish(1)]
    return Outcome(violations=[f"not all ranks started: {endings}"])


def failed(
    outcome: Outcome, trial: object, job: Job, what: str, is_excused: bool = False
) -> Outcome:
    """Return the outcome of a job that ended too early.

    The end is excused if a fault was longer than intended.
    """
    job.dismiss()
    endings = job.finish()
    told = broken(endings) if is_excused else [str(ending) for ending in endings]
    if told or not is_excused:
        outcome.violations.append(f"{trial}: {what}: {told}")
    outcome.rows.append((what + (", as it was longer" if is_excused else ""), None))
    return outcome


def broken(endings: list[Ending]) -> list[str]:
    """Return the endings that no rank may ever have, whatever happens to the others."""
    return [str(ending) for ending in endings if ending.kind in ("wrong", "hang", "crash", "panic")]
