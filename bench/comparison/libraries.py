"""The libraries that are compared: how each is installed, built and started.

Peers are installed from PyPI into `bench/.venvs`, an environment each; programs are built into
`target/peers`. A library defines its placements and measures their times in one run of separate
processes.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from comparison import machine
from comparison.collectives import Collective
from comparison.processes import Failed, output_of

BENCH = Path(__file__).resolve().parent.parent
ROOT = BENCH.parent
VENVS = BENCH / ".venvs"
BUILT = ROOT / "target" / "peers"
COMMAND = ROOT / "target" / "release" / "ringfold"

PACKAGES = {
    "openmpi": ("openmpi",),
    "mpich": ("mpich",),
    "impi": ("impi-rt", "impi-devel"),
    "gloo": ("torch==2.13.0", "numpy"),
    "plot": ("matplotlib",),
}
# Enough for a program that starts and does almost nothing.
PROBE_LIMIT_S = 60.0


@dataclass(frozen=True)
class Work:
    """What one run of a library's processes measures."""

    collective: Collective
    ranks: int
    size: int
    # The maximum number of iterations per placement, fewer if they exceed the budget.
    iterations: int
    budget_ms: int
    # Whether each rank gets a core of its own.
    pin: bool
    limit_s: float


# The time of the first call and of every iteration, in microseconds, by placement.
Lines = dict[str, list[float]]


class Library(Protocol):
    name: str
    version: str
    is_peer: bool

    def placements(self, collective: Collective) -> tuple[str, ...]:
        """The library's placements for this collective; empty if it does not have it."""
        ...

    def run(self, work: Work) -> Lines: ...


def environment(name: str) -> Path:
    """The virtual environment of this name, created if necessary."""
    venv = VENVS / name
    if not (venv / "complete").exists():
        print(f"installing {' '.join(PACKAGES[name])} into {venv}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        subprocess.run([venv / "bin" / "pip", "install", "--quiet", *PACKAGES[name]], check=True)
        (venv / "complete").touch()
    return venv


def installed_version(venv: Path, package: str) -> str:
    (found,) = venv.glob(f"lib/python*/site-packages/{package.replace('-', '_')}-*.dist-info")
    return found.name.removesuffix(".dist-info").rpartition("-")[2]


class Ringfold:
    """A build of ringfold, by default this tree's release, with additional flags of
    `ringfold perf`.
    """

    is_peer = False

    def __init__(self, name: str, *flags: str, command: Path = COMMAND) -> None:
        self.name = name
        self.flags = flags
        self.command = command
        self.version = ringfold_version() if command == COMMAND else str(command)

    def placements(self, collective: Collective) -> tuple[str, ...]:
        return collective.placements

    def run(self, work: Work) -> Lines:
        size, bind = work.collective.bytes(work.ranks, work.size), PIN_FLAGS if work.pin else ()
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            sweep = [
                "-b",
                size,
                "-e",
                size,
                "-n",
                work.iterations,
                "-w",
                0,
                "-c",
                0,
                "--rewrite",
                "-I",
                1,
                "-J",
                report,
            ]
            start = [self.command, "perf", work.collective.name, "--ranks", work.ranks]
            output_of([*start, *sweep, *bind, *self.flags], work.limit_s)
            (row,) = json.loads(report.read_text())["results"]
        sides = {"out": "out_of_place", "in": "in_place"}
        return {
            placement: [
                row[sides[placement]]["first_us"],
                *row[f"{sides[placement]}_per_iter"]["times_us"],
            ]
            for placement in self.placements(work.collective)
        }


# Ranks on cores of their own; without these flags, `ringfold perf` decides, as for a user.
PIN_FLAGS = ("--bind", "core")


def build_ringfold() -> None:
    subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=ROOT, check=True)


def ringfold_version() -> str:
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=ROOT,
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    return described.stdout.strip()


def refusal(collective: str, ranks: int, *flags: str) -> str:
    """Why `ringfold perf` refuses these flags; empty if it accepts them."""
    try:
        shortest = ["-e", 8, "-n", 1, "-w", 0, "-c", 0]
        output_of([COMMAND, "perf", collective, "--ranks", ranks, *shortest, *flags], PROBE_LIMIT_S)
    except Failed as failure:
        return str(failure)
    return ""


@dataclass(frozen=True)
class Launch:
    """How an MPI's processes are started."""

    # Arguments of `mpirun`: always, when ranks outnumber cores, and when ranks are bound.
    flags: tuple[str, ...] = ()
    crowd_flags: tuple[str, ...] = ()
    pin_flags: tuple[str, ...] = ()
    variables: Mapping[str, str] | None = None
    pin_variables: Mapping[str, str] | None = None


def as_root() -> tuple[str, ...]:
    return ("--allow-run-as-root",) if os.getuid() == 0 else ()


def launches(impi: Path) -> dict[str, Launch]:
    """By peer. Unless pinned, the defaults apply: Intel MPI always binds, Open MPI binds a rank to
    a core, MPICH never binds.
    """
    return {
        "openmpi": Launch(
            flags=as_root(),
            # Not always, because it also disables binding.
            crowd_flags=("--oversubscribe",),
            pin_flags=("--bind-to", "core"),
        ),
        "mpich": Launch(pin_flags=("-bind-to", "core")),
        "impi": Launch(
            variables={
                "I_MPI_ROOT": str(impi),
                "I_MPI_FABRICS": "shm",
                "LD_LIBRARY_PATH": str(impi / "lib"),
                "PATH": f"{impi / 'bin'}:{os.environ['PATH']}",
            },
            pin_variables={
                "I_MPI_PIN": "1",
                "I_MPI_PIN_DOMAIN": "core",
                "I_MPI_PIN_ORDER": "spread",
            },
        ),
    }


class Mpi:
    """A collective of an MPI, or under the name NAME-ring an all-reduce of our own on its
    messages.
    """

    is_peer = True

    def __init__(self, name: str) -> None:
        self.name = name
        peer, _, self.variant = name.partition("-")
        self.venv = environment(peer)
        self.version = installed_version(self.venv, PACKAGES[peer][0])
        self.launch = launches(self.venv)[peer]
        self.program = BUILT / f"collectives-{peer}"
        self.build(peer)

    def build(self, peer: str) -> None:
        BUILT.mkdir(parents=True, exist_ok=True)
        # Intel's compiler wrappers search the folders of its own installation.
        wrapped = [self.venv / "bin" / "mpicc"]
        plain = ["cc", f"-I{self.venv}/include", f"-L{self.venv}/lib"]
        compiler, library = (plain, ["-lmpi"]) if peer == "impi" else (wrapped, [])
        source = BENCH / "collectives_mpi.c"
        subprocess.run([*compiler, "-O2", "-o", self.program, source, *library], check=True)

    def placements(self, collective: Collective) -> tuple[str, ...]:
        return collective.placements if not self.variant or collective.name == "all_reduce" else ()

    def run(self, work: Work) -> Lines:
        launch = self.launch
        variables = dict(launch.variables or {}) | dict(
            launch.pin_variables or {} if work.pin else {}
        )
        crowd = launch.crowd_flags if work.ranks > machine.cores() else ()
        flags = [*launch.flags, *crowd, *(launch.pin_flags if work.pin else ())]
        start = [self.venv / "bin" / "mpirun", *flags, "-n", work.ranks]
        count = work.collective.count(work.ranks, work.size)
        what = [self.variant or work.collective.name, count, work.iterations, work.budget_ms]
        placements = self.placements(work.collective)
        return lines_in(
            output_of([*start, self.program, *what, *placements], work.limit_s, variables),
            placements,
        )


class Gloo:
    """gloo through torch.distributed, with one thread per rank."""

    is_peer = True
    name = "gloo"

    def __init__(self) -> None:
        venv = environment(self.name)
        self.python = venv / "bin" / "python"
        self.version = f"torch {installed_version(venv, 'torch')}"

    def placements(self, collective: Collective) -> tuple[str, ...]:
        return ("in",) if collective.name in ("all_reduce", "broadcast", "reduce") else ("out",)

    def run(self, work: Work) -> Lines:
        start = [
            COMMAND,
            "run",
            "--ranks",
            work.ranks,
            "--no-prefix",
            "--",
            self.python,
            "-W",
            "ignore",
        ]
        count = work.collective.count(work.ranks, work.size)
        placements = self.placements(work.collective)
        what = [
            work.collective.name,
            count,
            work.iterations,
            work.budget_ms,
            int(work.pin),
            *placements,
        ]
        # Only the program itself binds ranks, and only on request.
        unbound = {"RINGFOLD_BIND": "none"}
        return lines_in(
            output_of([*start, BENCH / "collectives_gloo.py", *what], work.limit_s, unbound),
            placements,
        )


def lines_in(output: str, placements: tuple[str, ...]) -> Lines:
    """The programs' output: a placement and its times on a line, mixed with the launchers' own
    output.
    """
    lines = {}
    for line in output.splitlines():
        words = line.split()
        if words and words[0] in placements:
            lines[words[0]] = [float(word) for word in words[1:]]
    if missing := set(placements) - lines.keys():
        raise Failed(f"printed no times for {', '.join(sorted(missing))}")
    return lines


PEERS = ("impi", "openmpi", "mpich", "gloo", "openmpi-ring", "impi-ring", "mpich-ring")


def peer(name: str) -> Library:
    return Gloo() if name == "gloo" else Mpi(name)
