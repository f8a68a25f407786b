"""The parts of bench/rdma_memory.py that need no device."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import rdma_guest
import rdma_memory
from comparison.libraries import BENCH

WATCHDOG_S = 60.0


def test_the_length_from_which_memory_is_registered_is_in_the_log() -> None:
    line = "rxe0: registering memory takes 9.0 us and 0.1 us a KiB, copying it 0.2 us a KiB; "
    assert rdma_memory.chosen_in(f"{line}calls register from 4097 bytes on\nmore\n") == 4097
    assert rdma_memory.chosen_in(f"more\n{line}calls copy\n") is None
    with pytest.raises(SystemExit, match="another version"):
        rdma_memory.chosen_in("more\n")


def test_registrations_have_a_median_for_each_line() -> None:
    output = "4096 small register 3.0 1.0 2.0\n4096 huge copy 5.0\n"
    expected = {("small pages", "register", 4096): 2.0, ("huge pages", "copy", 4096): 5.0}
    assert rdma_memory.medians_in(output) == expected


def taken() -> rdma_memory.Taken:
    found = rdma_memory.Taken()
    for way, times in {
        "staged": [30.0, 10.0, 20.0],
        "registered": [50.0, 40.0, 60.0],
        "before": [1.0, 1.0, 1.0],
        "choice": [1000.0, 25.0, 30.0],
    }.items():
        found.times_us["all_reduce in", way, 4096] = times
    found.chosen[4096] = [None, 5000, 400]
    return found


def test_the_choice_is_compared_with_the_better_of_its_alternatives() -> None:
    *_, line, _, chose = rdma_memory.tables(taken()).splitlines()
    assert line.split()[0] == "4096" and "30.0 [25.0, 1000]" in line
    # Not with memory that is registered before.
    assert line.endswith("  1.50")
    assert chose == "the choice: 2 of 3 starts register, from 400 to 5000 bytes on"


def test_registering_is_compared_with_copying() -> None:
    found = taken()
    found.times_us["huge pages", "register", 4096] = [3.0]
    found.times_us["huge pages", "copy", 4096] = [4.0]
    assert rdma_memory.tables(found).splitlines()[-1].endswith("  0.75")


def test_rows_say_what_each_start_chose() -> None:
    rows = [row for row in rdma_memory.rows_of(taken()) if row[2] == "choice"]
    assert rows[0] == (0, "all_reduce in", "choice", 4096, 1000.0, "never")
    assert [row[-1] for row in rows] == ["never", 5000, 400]


def test_variables_of_the_guest_can_be_given() -> None:
    given = rdma_guest.guest_variables({"RDMA_VM_MEMORY": "1024", "HOME": "/root"})
    assert given == {**rdma_guest.GUEST, "RDMA_VM_MEMORY": "1024", "HOME": "/root"}


def test_packages_are_installed_by_root_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(rdma_guest, "absent", lambda packages: list(packages))
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    reason = rdma_guest.refusal(["one", "two"])
    assert reason.startswith("not installed: one two; run apt-get install one two")
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert "no apt-get" in rdma_guest.refusal(["one"])


@pytest.mark.skipif(
    shutil.which("cc") is None or not Path("/usr/include/infiniband/verbs.h").exists(),
    reason="needs a C compiler and libibverbs-dev",
)
def test_what_measures_registrations_builds_and_asks_for_a_device(tmp_path: Path) -> None:
    program = tmp_path / "registration_rate"
    words = ["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(program)]
    subprocess.run([*words, str(BENCH / "registration_rate.c"), "-libverbs"], check=True)
    for arguments, complaint in (([], "usage"), (["none", "1", "1", "4096"], "device")):
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=WATCHDOG_S, check=False
        )
        assert done.returncode != 0 and complaint in done.stderr
