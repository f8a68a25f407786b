"""Steps with deadlines, their verdicts, and the files that they leave.

A step that fails or hangs is ended with all its processes and becomes a verdict; the next one runs.
"""

import csv
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from comparison.processes import Failed, output_of

PASS, FAIL, SKIP = "PASS", "FAIL", "SKIP"
NUMBER = re.compile(r"-?\d+(\.\d+)?")
# Columns of the printed lines.
NAME_WIDTH, MEASURED_WIDTH = 34, 40


class Row(NamedTuple):
    """A measured value."""

    name: str
    setting: str
    value: float
    unit: str


class Verdict(NamedTuple):
    """What a step says of one criterion."""

    outcome: str
    name: str
    measured: str
    asked: str

    def __str__(self) -> str:
        measured = f"measured: {self.measured}"
        return (
            f"{self.outcome} {self.name:{NAME_WIDTH}} {measured:{MEASURED_WIDTH}} "
            f"asked: {self.asked}"
        )


class Skipped(Exception):
    """A step cannot run here: why."""


@dataclass(frozen=True)
class Setup:
    """The programs, and the devices that they use."""

    command: Path
    facts: Path
    python: str
    soft: bool
    seconds: float
    only: str | None = None
    # Why torch's steps cannot run; None if they can, with these words and variables.
    no_torch: str | None = None
    torch_words: tuple[str, ...] = ()
    torch_variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def devices(self) -> str:
        """For `ringfold perf --device`: all ranks on the first."""
        return "soft:same" if self.soft else "cuda:same"

    def of(self, real: str, soft: str) -> str:
        """A size for a GPU, or a small one for the software driver."""
        return soft if self.soft else real


@dataclass
class Bench:
    """A run: what its steps use, and what they have measured."""

    name: str
    setup: Setup
    folder: Path
    rows: list[Row] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    # Of the step that runs, as time.monotonic() counts.
    deadline: float = 0.0

    def left_s(self) -> float:
        """What is left of the step's time."""
        return max(self.deadline - time.monotonic(), 0.0)

    def output(self, command: Sequence[object], variables: Mapping[str, str] | None = None) -> str:
        """A program's standard output."""
        return output_of(command, self.left_s(), variables)

    def job(self, ranks: int, *command: object) -> list[object]:
        """The command that starts a job."""
        return [self.setup.command, "run", "--no-prefix", "--ranks", ranks, "--", *command]

    def ranks(self, ranks: int, *command: object, **variables: str) -> list[Row]:
        """The rows that the ranks of a job write."""
        return self.add(rows_in(self.output(self.job(ranks, *command), variables)))

    def facts(self, ranks: int, *words: object, **variables: str) -> list[Row]:
        """The rows of one of the program's measurements."""
        return self.ranks(ranks, self.setup.facts, *words, **variables)

    def torch(self, ranks: int, *words: object, **variables: str) -> list[Row]:
        """The rows of one of torch's jobs."""
        if self.setup.no_torch:
            raise Skipped(self.setup.no_torch)
        program = Path(__file__).with_name("torch_job.py")
        given = (*words, *self.setup.torch_words)
        known = variables | dict(self.setup.torch_variables)
        return self.ranks(ranks, self.setup.python, program, *given, **known)

    def add(self, rows: Iterable[Row]) -> list[Row]:
        """Record rows, in the file, too."""
        new = list(rows)
        self.rows.extend(new)
        write(self.folder / f"gpu-{self.name}.csv", Row._fields, self.rows)
        return new

    def judge(self, name: str, holds: bool, measured: str, asked: str) -> None:
        """A verdict of the step."""
        self.say(Verdict(PASS if holds else FAIL, name, measured, asked))

    def judge_time(self, name: str, holds: bool, measured: str, asked: str) -> None:
        """A verdict about times, which those of the software driver cannot give."""
        if self.setup.soft:
            note = f"{measured} on the software driver"
            self.say(Verdict(SKIP, name, note, f"{asked}, of a GPU"))
        else:
            self.judge(name, holds, measured, asked)

    def say(self, verdict: Verdict) -> None:
        print(verdict, flush=True)
        self.verdicts.append(verdict)
        lines = [(self.name, *each) for each in self.verdicts]
        file = self.folder / f"gpu-{self.name}-verdicts.csv"
        write(file, ("run", *Verdict._fields), lines)


# A run on a borrowed machine has ten minutes, its start included.
RUN_S = 570.0


@dataclass(frozen=True)
class Step:
    """A part of a run, with its time limit where the run has `RUN_S`."""

    name: str
    limit_s: float
    measure: Callable[[Bench], None]


def run(bench: Bench, steps: Sequence[Step]) -> bool:
    """Run all steps within the run's time; whether none has failed."""
    share = bench.setup.seconds / RUN_S
    end = time.monotonic() + bench.setup.seconds
    for step in steps:
        if bench.setup.only not in (None, step.name):
            continue
        now = time.monotonic()
        bench.deadline = min(now + share * step.limit_s, end)
        if now >= end:
            text = f"none: the run's {bench.setup.seconds:.0f} s were over"
            bench.say(Verdict(FAIL, step.name, text, "to be measured"))
            continue
        try:
            step.measure(bench)
        except Skipped as why:
            bench.say(Verdict(SKIP, step.name, "none", str(why)))
        # Whatever goes wrong in a step keeps none of the others from running.
        except (Failed, OSError, LookupError, ValueError, AssertionError) as error:
            text = str(error) or type(error).__name__
            bench.say(Verdict(FAIL, step.name, " | ".join(text.split("\n")), "to be measured"))
    outcomes = [verdict.outcome for verdict in bench.verdicts]
    counts = ", ".join(
        f"{outcomes.count(outcome)} {word}"
        for outcome, word in ((PASS, "passed"), (FAIL, "failed"), (SKIP, "skipped"))
    )
    print(f"gpu.sh {bench.name}: {counts}; files in {bench.folder}", flush=True)
    return FAIL not in outcomes


def rows_in(output: str) -> list[Row]:
    """The rows among a job's lines."""
    rows = []
    for line in output.splitlines():
        parts = line.split(",")
        if len(parts) == len(Row._fields) and NUMBER.fullmatch(parts[2]):
            rows.append(Row(parts[0], parts[1], float(parts[2]), parts[3]))
    return rows


def value(rows: Iterable[Row], name: str) -> float:
    """The value of the only row with this name."""
    found = [row.value for row in rows if row.name == name]
    if len(found) != 1:
        raise Failed(f"{len(found)} rows `{name}` were written, not one")
    return found[0]


def write(file: Path, header: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    """Replace a file by these lines of CSV at once."""
    written = file.with_suffix(".new")
    with written.open("w", newline="") as target:
        writer = csv.writer(target, lineterminator="\n")
        writer.writerow(header)
        writer.writerows(rows)
    os.replace(written, file)
