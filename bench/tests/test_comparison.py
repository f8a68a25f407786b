"""The parts of bench/peers.py that need no peer."""

import csv
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from comparison import catalogue, processes, report
from comparison.collectives import COLLECTIVES, Collective, bytes_of, text_of
from comparison.libraries import Lines, Work, lines_in
from comparison.machine import slug
from comparison.measure import Plan, Taken, measure
from comparison.memory import Memory
from comparison.processes import Failed
from comparison.summary import Case, Comparison, Row, Times, interval, percentile

ALL_REDUCE = COLLECTIVES["all_reduce"]


def test_sizes_are_those_of_perf() -> None:
    def sized(name: str, ranks: int, size: int) -> tuple[int, int]:
        return COLLECTIVES[name].count(ranks, size), COLLECTIVES[name].bytes(ranks, size)

    assert sized("all_reduce", 2, 1024) == (256, 1024)
    assert sized("all_reduce", 2, 3) == (1, 4)
    assert sized("all_reduce", 2, 0) == (0, 0)
    assert sized("all_gather", 4, 1024) == (64, 1024)
    assert sized("all_gather", 3, 1024) == (84, 1008)
    assert sized("reduce_scatter", 8, 8) == (1, 32)
    assert sized("barrier", 8, 0) == (0, 0)


def test_a_size_reads_as_it_is_written() -> None:
    for text in ("8", "256", "4K", "100M", "2G"):
        assert text_of(bytes_of(text)) == text
    assert bytes_of("64k") == 65536
    for wrong in ("", "K", "1.5M", "12Q", "-1"):
        with pytest.raises(ValueError):
            bytes_of(wrong)


def test_an_all_reduce_reads_and_writes_every_ranks_vector() -> None:
    assert ALL_REDUCE.traffic_bytes(4, 100) == 2 * 4 * 100
    assert COLLECTIVES["broadcast"].traffic_bytes(4, 100) == 4 * 100
    assert COLLECTIVES["gather"].traffic_bytes(4, 100) == 2 * 100
    assert COLLECTIVES["barrier"].traffic_bytes(4, 0) == 0


def test_an_interval_covers_the_median_as_often_as_it_says() -> None:
    # Of ten values, the second and the ninth: 97.9 %; the third and the eighth would be 89.1 %.
    assert interval([float(i) for i in range(1, 11)]) == (2.0, 9.0)
    assert interval([1.0, 2.0, 3.0]) == (1.0, 3.0)
    assert interval([5.0]) == (5.0, 5.0)
    # For many values, the interval approaches the normal distribution's: 1.96 times half the square
    # root of n on either side.
    low, high = interval([float(i) for i in range(1, 10_001)])
    assert (low, high) == pytest.approx((5000 - 98, 5001 + 98), abs=1.5)


def test_percentiles_are_values_that_occurred() -> None:
    hundred = [float(i) for i in range(1, 101)]
    assert percentile(hundred, 99) == 99.0
    assert percentile([7.0], 99) == 7.0


def comparison(limits_us: Mapping[Case, float]) -> Comparison:
    return Comparison(
        collective="all_reduce",
        pinned=False,
        versions={
            "ringfold": "1",
            "ringfold-registered": "1",
            "slow": "2",
            "quick": "3",
            "dead": "4",
        },
        peers=frozenset({"slow", "quick", "dead"}),
        limits_us=limits_us,
    )


def rows() -> list[Row]:
    case = Case(2, 64, "out")
    return comparison({case: 0.5}).rows(
        {
            ("slow", case): Times([9.0], [[4.0, 4.0], [4.0]]),
            ("quick", case): Times([9.0], [[2.0], [2.0]]),
            ("dead", case): Times(failure="hung: ended after 60 s"),
            ("ringfold-registered", case): Times([9.0], [[0.5]]),
            ("ringfold", case): Times([9.0, 7.0], [[1.0], [1.0, 1.5]]),
        }
    )


def test_ratios_are_of_medians_and_the_best_peer_is_no_ringfold() -> None:
    by_name = {row.library: row for row in rows()}
    own = by_name["ringfold"]
    assert list(by_name) == ["ringfold", "ringfold-registered", "slow", "quick", "dead"]
    assert (own.first_us, own.median_us, own.iterations, own.rounds) == (8.0, 1.0, 3, 2)
    assert (own.quickest_round_us, own.slowest_round_us) == (1.0, 1.25)
    assert (own.best_peer, own.best_ratio, own.limit_ratio) == ("quick", 0.5, 2.0)
    assert by_name["ringfold-registered"].best_ratio == 0.25
    assert (by_name["slow"].ringfold_ratio, by_name["slow"].best_ratio) == (0.25, 2.0)
    assert (by_name["dead"].median_us, by_name["dead"].best_ratio) == (None, None)


def test_the_table_names_what_failed_and_marks_the_best(tmp_path: Path) -> None:
    lines = report.table(rows()).splitlines()
    assert len(lines) == 6
    assert "hung: ended after 60 s" in lines[5]
    assert [line for line in lines if "*" in line] == [lines[4]]
    file = tmp_path / "new" / "rows.csv"
    report.write_csv(rows(), file)
    read = list(csv.DictReader(file.open()))
    assert [row["median_us"] for row in read] == ["1.0", "0.5", "4.0", "2.0", ""]


class Fake:
    """A library that records its runs, and fails from a given size on."""

    is_peer = True
    version = "0"

    def __init__(self, name: str, log: list[tuple[str, int]], fails_at: int = 1 << 40) -> None:
        self.name, self.log, self.fails_at = name, log, fails_at

    def placements(self, collective: Collective) -> tuple[str, ...]:
        return collective.placements

    def run(self, work: Work) -> Lines:
        self.log.append((self.name, work.size))
        if work.size >= self.fails_at:
            raise Failed("hung: ended after 60 s\n    its last words")
        return {"out": [3.0, 1.0, 2.0], "in": [3.0, 1.0]}


def no_memory() -> Memory:
    """Return a memory that measures nothing, because all sizes are small."""
    return Memory(ALL_REDUCE, [8])


def test_libraries_take_turns_at_being_first_and_small_sizes_have_more_of_them() -> None:
    log: list[tuple[str, int]] = []
    taken = Taken()
    plan = Plan(ALL_REDUCE, [2], [8, 1 << 20], rounds=2, pin=False)
    measure(plan, [Fake("a", log), Fake("b", log)], no_memory(), taken)
    assert [name for name, size in log if size == 8] == ["a", "b", "b", "a"] * 3
    assert [name for name, size in log if size == 1 << 20] == ["a", "b", "b", "a"]
    assert taken["a", Case(2, 8, "out")].rounds_us == [[1.0, 2.0]] * 6
    assert taken["b", Case(2, 1 << 20, "in")].first_us == [3.0, 3.0]


def test_a_library_that_hung_is_not_tried_with_more() -> None:
    log: list[tuple[str, int]] = []
    taken = Taken()
    plan = Plan(ALL_REDUCE, [2, 4], [8, 1024, 1 << 20], rounds=1, pin=False)
    measure(plan, [Fake("a", log, fails_at=1024)], no_memory(), taken)
    assert log == [("a", 8), ("a", 1024)] * 2 + [("a", 8)] * 4
    assert taken["a", Case(4, 1024, "in")].failure == "hung: ended after 60 s"
    assert taken["a", Case(4, 8, "in")].failure == ""


def test_the_limit_is_the_traffic_over_the_median_rate_from_4_mib_up() -> None:
    memory = no_memory()
    memory.rates_gbps = {2: [30.0, 10.0, 20.0]}
    small, large, other = Case(2, 1 << 20, "in"), Case(2, 8 << 20, "in"), Case(4, 8 << 20, "in")
    assert memory.limits_us([small, large, other]) == {
        large: pytest.approx(2 * 2 * (8 << 20) / 20e3)
    }
    assert any("20.0 GB/s" in line and "10.0 to 30.0" in line for line in memory.lines())


def test_a_machines_name_has_no_noise() -> None:
    assert slug("AMD EPYC", 2) == "epyc-2-cores"
    assert slug("Intel(R) Xeon(R) Platinum 8480C CPU @ 2.00GHz", 8) == "xeon-platinum-8480c-8-cores"
    assert slug("AMD EPYC 9654 96-Core Processor", 4) == "epyc-9654-4-cores"
    assert slug("", 1) == "machine-1-cores"


def test_lines_are_found_among_a_launchers_words() -> None:
    assert lines_in("a warning\nout 3.5 1 2\nin 4 1\n", ("out", "in")) == {
        "out": [3.5, 1, 2],
        "in": [4, 1],
    }
    with pytest.raises(Failed, match="no times for in"):
        lines_in("out 3.5 1\n", ("out", "in"))


def test_ucc_is_absent_until_its_user_installs_it(tmp_path: Path) -> None:
    (tmp_path / "ucc").mkdir()
    (tmp_path / "ucc" / "complete").touch()
    assert f"no UCC in {tmp_path / 'ucc'}" in catalogue.absence("ucc", tmp_path)
    package = tmp_path / "ucc" / "lib" / "pkgconfig" / "ucc.pc"
    package.parent.mkdir(parents=True)
    package.write_text("Name: ucc\nVersion: 1.8.0\n")
    assert catalogue.absence("ucc", tmp_path) == ""


def test_a_failure_tells_the_programs_last_words() -> None:
    program = "import sys; print('begun'); sys.exit('no such fabric')"
    with pytest.raises(Failed, match="(?s)status 1.*begun.*no such fabric"):
        processes.output_of([sys.executable, "-c", program], 60.0)


# A launcher whose rank leaves its session; it writes the rank's pid before both sleep.
HANGING = """
import os, subprocess, sys, time
rank = subprocess.Popen(["sleep", "1000"], start_new_session=True)
open(sys.argv[1], "w").write(f"{rank.pid}\\n")
time.sleep(1000)
"""


def alive(pid: int) -> bool:
    return processes.state_and_parent(pid)[0] not in ("Z", "X")


def test_nothing_is_left_of_a_program_that_hangs(tmp_path: Path) -> None:
    """Runs in a separate process, because the reaper ends all descendants."""
    noted = tmp_path / "pid"
    begin = "from comparison import processes; processes.become_reaper()"
    call = f"processes.output_of([sys.executable, '-c', {HANGING!r}, {str(noted)!r}], 2.0)"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {begin}; {call}"],
        env=os.environ | {"PYTHONPATH": str(Path(processes.__file__).parent.parent)},
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
    )
    assert "hung: ended after 2 s" in done.stderr
    assert not alive(int(noted.read_text()))


def test_nothing_is_left_after_ctrl_c(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    begin = "from comparison import processes; processes.become_reaper()"
    call = f"processes.output_of([sys.executable, '-c', {HANGING!r}, {str(noted)!r}], 1000.0)"
    # A shell's background jobs ignore the signal, and so would their children.
    heard = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    with subprocess.Popen(
        [sys.executable, "-c", f"import sys; {heard}; {begin}; {call}"],
        env=os.environ | {"PYTHONPATH": str(Path(processes.__file__).parent.parent)},
        stderr=subprocess.PIPE,
    ) as started:
        deadline = time.monotonic() + 60
        while not (noted.exists() and noted.read_text().endswith("\n")):
            assert time.monotonic() < deadline and started.poll() is None
            time.sleep(0.01)
        started.send_signal(signal.SIGINT)
        started.communicate(timeout=60)
    assert not alive(int(noted.read_text()))
