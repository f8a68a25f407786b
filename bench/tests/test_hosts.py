"""The parts of bench/peers.py that compare between hosts."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

import lab
import peers
from comparison import launchers, markdown, processes
from comparison.collectives import COLLECTIVES, Collective
from comparison.hosts import Hosts
from comparison.launchers import Job
from comparison.libraries import Lines, Work
from comparison.measure import Plan, Taken, measure
from comparison.processes import Failed, Program
from comparison.summary import Case, Comparison, Row, Setting, Times
from lab import Lab, abandoned

ALL_REDUCE = COLLECTIVES["all_reduce"]
BENCH = Path(peers.__file__).parent
WATCHDOG_S = 60.0

needs_namespaces = pytest.mark.skipif(
    os.geteuid() != 0 or not all(map(shutil.which, ("ip", "tc", "unshare", "sysctl"))),
    reason="network namespaces need root, ip, tc, unshare and sysctl",
)


def python(*words: str) -> list[str]:
    return [sys.executable, "-c", *words]


def test_the_output_is_the_first_programs() -> None:
    programs = [Program(python(f"print({number})")) for number in (1, 2)]
    assert processes.output_of_first(programs, WATCHDOG_S) == "1\n"


def test_programs_have_variables_of_their_own() -> None:
    shown = python("import os; print(os.environ['RANK'], 'PATH' in os.environ)")
    programs = [Program(shown, {"RANK": str(rank)}) for rank in (0, 1)]
    assert processes.output_of_first(programs, WATCHDOG_S) == "0 True\n"


def test_a_rank_that_fails_ends_the_others() -> None:
    """Runs in a separate process, because the reaper ends all descendants."""
    sleeps, fails = "import time; time.sleep(1000)", "import sys; sys.exit('no route')"
    program = f"""
import sys
from comparison.processes import Program, become_reaper, output_of_first
become_reaper()
output_of_first([Program([sys.executable, "-c", {sleeps!r}]),
                 Program([sys.executable, "-c", {fails!r}])], 1000.0)
"""
    done = subprocess.run(
        python(program),
        env=os.environ | {"PYTHONPATH": str(BENCH)},
        stderr=subprocess.PIPE,
        text=True,
        timeout=WATCHDOG_S,
    )
    assert "Failed: ended with status 1" in done.stderr and "no route" in done.stderr


def test_ranks_are_placed_host_by_host() -> None:
    job = Job(6, hosts=("a", "b", "c"))
    assert [job.host(rank) for rank in range(6)] == ["a", "a", "b", "b", "c", "c"]
    assert job.slots() == "a:2,b:2,c:2"
    started = launchers.separately(["run", 7], launchers.torch_variables(6), job)
    assert [program.command[1] for program in started] == ["a", "a", "b", "b", "c", "c"]
    assert [program.variables["RANK"] for program in started] == list("012345")


def words(peer: str, job: Job) -> str:
    program = launchers.mpi(peer, Path("/venv"), ["program"], job)
    settings = [f"{name}={value}" for name, value in program.variables.items()]
    return " ".join([*map(str, program.command), *settings])


def test_mpis_start_on_the_first_host_and_reach_the_others_without_ssh() -> None:
    for peer in ("openmpi", "mpich", "impi", "ucc"):
        command = words(peer, Job(4, hosts=("a", "b")))
        assert command.startswith(f"{lab.ENTER} a /venv/bin/mpirun ")
        assert command.count(str(lab.ENTER)) == 2
        assert "-n 4 program" in command
        assert str(lab.ENTER) not in words(peer, Job(4))


def test_mpis_sleep_or_yield_only_where_ranks_outnumber_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    yields = {
        "openmpi": "mpi_yield_when_idle",
        "mpich": "PROGRESS_THROTTLE",
        "impi": "I_MPI_WAIT_MODE",
    }
    monkeypatch.setattr("comparison.machine.cores", lambda: 2)
    for peer, flag in yields.items():
        assert flag not in words(peer, Job(2, hosts=("a", "b")))
        assert flag in words(peer, Job(4, hosts=("a", "b")))


class NoLab(Lab):
    """Hosts that do not exist; records the congestion controls that are set."""

    def __init__(self, hosts: int) -> None:
        super().__init__(hosts)
        self.set: list[str] = []

    def set_congestion(self, name: str) -> None:
        self.set.append(name)


class Fake:
    """A library that records its runs."""

    is_peer = True
    version = "0"

    def __init__(self, name: str, log: list[tuple[str, int]]) -> None:
        self.name, self.log = name, log

    def placements(self, collective: Collective) -> tuple[str, ...]:
        return ("in",)

    def run(self, work: Work) -> Lines:
        self.log.append((self.name, work.size))
        return {"in": [3.0, 1.0]}


def hosts(count: int, rate_mbit: float | None = None) -> Hosts:
    return Hosts(NoLab(count), ["cubic", "bbr"], rate_mbit)


def test_a_shaped_line_limits_what_each_host_sends() -> None:
    # 1000 Mbit/s are 125 bytes per microsecond, of which 1448 of 1514 are payload.
    line_us = hosts(2, 1000.0).line_us(125 * 1448)
    assert line_us == pytest.approx(1514)
    assert hosts(4, 1000.0).line_us(125 * 1448) == pytest.approx(1514 * 1.5)
    assert hosts(4).line_us(8) is None
    case = Case(2, 125 * 1448, "in")
    assert hosts(2, 1000.0).limits_us([case]) == {case: pytest.approx(1514)}


def test_a_shaped_line_has_as_many_iterations_as_fit_into_the_time() -> None:
    case = Case(2, 125 * 1448, "in")
    assert hosts(2).at_most(1000, case, 15.2) == 1000
    assert hosts(2, 1000.0).at_most(1000, case, 15.2) == 10
    assert hosts(2, 1000.0).at_most(1000, case, 0.1) == 3
    assert hosts(2, 1000.0).at_most(1000, replace(case, bytes=8), 100.0) == 1000


def test_every_size_runs_under_each_congestion_control() -> None:
    log: list[tuple[str, int]] = []
    taken, between = Taken(), hosts(2)
    plan = Plan(ALL_REDUCE, [2], [8, 64], rounds=2, pin=False, hosts=between)
    measure(plan, [Fake("a", log), Fake("b", log)], None, taken)
    assert isinstance(between.lab, NoLab) and between.lab.set == ["cubic", "bbr"] * 4
    first = [("a", 8), ("b", 8)] * 2 + [("a", 64), ("b", 64)] * 2
    assert log == first + [({"a": "b", "b": "a"}[name], size) for name, size in first]
    assert taken["b", Case(2, 64, "in", "bbr")].rounds_us == [[1.0]] * 2


def rows(times: dict[tuple[str, Case], Times], limits_us: dict[Case, float]) -> list[Row]:
    return Comparison(
        collective="all_reduce",
        pinned=False,
        versions={name: "1" for name, _ in times},
        peers=frozenset({"mpich", "gloo"}),
        limits_us=limits_us,
        setting=Setting(hosts=2, rate_mbit=1000.0, commit="abc", command="bench/peers.py"),
    ).rows(times)


def test_a_table_has_a_column_per_library_and_the_ratios_of_ringfold() -> None:
    cubic, bbr = Case(4, 65536, "in", "cubic"), Case(4, 65536, "in", "bbr")
    text = markdown.tables(
        rows(
            {
                ("ringfold", cubic): Times([9.0], [[10.0], [12.0, 12.0]]),
                ("ringfold-baseline", cubic): Times([9.0], [[24.0]]),
                ("mpich", cubic): Times([9.0], [[200.0]]),
                ("gloo", cubic): Times(failure="hung: ended after 20 s"),
                ("bare", cubic): Times([9.0], [[6.0]]),
                ("ringfold", bbr): Times([9.0], [[18.0]]),
            },
            {cubic: 3.0},
        )
    )
    assert text.splitlines() == [
        "**2 hosts × 2 ranks, all_reduce, cubic, cables of 1000 Mbit/s**:",
        "median µs [fastest, slowest of 2 rounds], commit `abc`",
        "",
        "| bytes | ringfold | ringfold-baseline | mpich | gloo | bare | ringfold / best peer | "
        "ringfold / baseline | rate / bare rate | rate / line rate |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
        "| 64 KiB | 12.0 [10.0, 12.0] | 24.0 [24.0, 24.0] | **200** [200, 200] | – | "
        "6.0 [6.0, 6.0] | 0.0600 | 0.500 | 0.500 | 0.250 |",
        "",
        "**2 hosts × 2 ranks, all_reduce, bbr, cables of 1000 Mbit/s**:",
        "median µs [fastest, slowest of 1 round], commit `abc`",
        "",
        "| bytes | ringfold | ringfold / under cubic |",
        "|---|---:|---:|",
        "| 64 KiB | 18.0 [18.0, 18.0] | 1.50 |",
        "",
        "* gloo, 64 KiB, cubic: hung: ended after 20 s",
    ]


def test_nothing_measured_gives_no_table() -> None:
    assert markdown.tables([]) == ""


def test_flags_that_exclude_each_other_are_refused() -> None:
    for flags in ("--hosts 2 --ranks 4", "--hosts 1", "--rate 1000", "--hosts 2 --pin"):
        with pytest.raises(SystemExit, match="^--(ranks|hosts|rate|pin) "):
            peers.checked(peers.parser().parse_args(flags.split()))


def test_hosts_have_a_preset_and_a_file_of_their_own() -> None:
    flags = "--hosts 2 --ranks-per-host 4 --congestion cubic,bbr --rate 1000".split()
    options = peers.parser().parse_args(flags)
    preset = peers.preset_of(options)
    assert list(preset.ranks) == [8]
    assert preset.collective.placements == ("in",)
    expected = "peers-all_reduce-2-hosts-4-ranks-each-cubic-bbr-1000-mbit.csv"
    assert peers.name(options, preset) == expected
    alone = peers.parser().parse_args(["--ranks", "4,8", "--pin"])
    assert peers.name(alone, peers.preset_of(alone)) == "peers-all_reduce-4-8-ranks-pinned.csv"


def test_a_run_between_hosts_is_short_unless_told_otherwise() -> None:
    def plan(*flags: str, between: Hosts | None) -> Plan:
        options = peers.parser().parse_args(flags)
        return peers.plan_of(peers.preset_of(options), options, between)

    assert plan("--hosts", "2", between=hosts(2)).limit_s == peers.HOSTS_LIMIT_S
    assert plan("--hosts", "2", between=hosts(2)).budget_ms == peers.HOSTS_BUDGET_MS
    assert plan("--hosts", "2", "--limit", "7", between=hosts(2)).limit_s == 7
    assert plan(between=None).limit_s == 60


def test_the_command_in_the_rows_has_no_place_of_this_machine() -> None:
    flags = ["--hosts", "2", "--rate", "1000"]
    assert peers.portable(flags) == flags
    assert peers.portable([*flags[:2], "--venvs", "/home/a/venvs", *flags[2:]]) == flags


def compiled(folder: Path) -> Path:
    program = folder / "tcp_rate"
    source = BENCH / "tcp_rate.c"
    subprocess.run(["cc", "-Wall", "-Wextra", "-Werror", "-o", program, source], check=True)
    return program


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_the_bare_exchange_prints_its_times(tmp_path: Path) -> None:
    program = compiled(tmp_path)
    port = free_port()
    for size, iterations in ((8, 5), (100_000, 5), (3 << 20, 1)):
        exchange = [program, port, size, iterations, 1e9]
        sides = [Program(exchange), Program([*exchange, "127.0.0.1"])]
        kind, *times = processes.output_of_first(sides, WATCHDOG_S).split()
        assert kind == "in" and len(times) == iterations + 1
        assert all(float(time_us) > 0 for time_us in times)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def test_only_labs_of_dead_processes_are_abandoned() -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    listed = (
        f"ringfold-lab-{ended.pid}-2-0 (id: 4)\nringfold-lab-{os.getpid()}-2-switch\n"
        f"other-{ended.pid}-1\nringfold-lab-{ended.pid}-2-switch (id: 3)\n"
    )
    assert abandoned(listed) == [
        f"ringfold-lab-{ended.pid}-2-0",
        f"ringfold-lab-{ended.pid}-2-switch",
    ]


def run_in(host: str, *command: str) -> str:
    done = subprocess.run(
        [str(lab.ENTER), "-x", host, *command],
        capture_output=True,
        text=True,
        timeout=WATCHDOG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def left(names: Sequence[str]) -> list[str]:
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True)
    found = {line.split()[0] for line in listed.stdout.splitlines()}
    return [name for name in names if name in found or (lab.FILES / name).exists()]


@needs_namespaces
def test_hosts_have_names_addresses_and_congestion_control() -> None:
    with Lab(2) as two:
        first, second = two.hosts
        assert run_in(first, "hostname") == first
        assert run_in(first, "getent", "hosts", second).split() == [lab.address(1), second]
        permitted = lab.PERMITTED.read_text().split()
        two.set_congestion(permitted[0])
        assert run_in(second, "cat", str(lab.KERNEL_CONGESTION)) == permitted[0]
        with pytest.raises(SystemExit, match="tcp_allowed_congestion_control"):
            two.set_congestion("no-such-control")
    assert left([*two.hosts, two.switch]) == []


@needs_namespaces
def test_no_host_is_left_after_ctrl_c(tmp_path: Path) -> None:
    noted = tmp_path / "names"
    program = f"""
import pathlib, time
import peers
options = peers.parser().parse_args(["--hosts", "2", "--rate", "100"])
with peers.hosts_of(options) as hosts:
    pathlib.Path({str(noted)!r}).write_text(" ".join([*hosts.lab.hosts, hosts.lab.switch, "."]))
    time.sleep(1000)
"""
    # A shell's background jobs ignore the signal.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    with subprocess.Popen(
        python(f"{heard}\n{program}"),
        env=os.environ | {"PYTHONPATH": str(BENCH)},
        stderr=subprocess.PIPE,
    ) as started:
        deadline = time.monotonic() + WATCHDOG_S
        while not (noted.exists() and noted.read_text().endswith(".")):
            assert time.monotonic() < deadline and started.poll() is None
            time.sleep(0.01)
        names = noted.read_text().split()[:-1]
        assert left(names) == names
        started.send_signal(signal.SIGINT)
        started.communicate(timeout=WATCHDOG_S)
    assert left(names) == []
