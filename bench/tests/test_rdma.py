"""The parts of bench/rdma.py and bench/rdma_memory.py that need no device."""

import argparse
import math
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

import rdma
import rdma_guest
import rdma_memory
import rdma_peers
from comparison.libraries import BENCH, ROOT
from comparison.processes import Failed
from rdma_hosts import RdmaHosts
from rdma_peers import ENTER, PEERS, Peer

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
    # Memory that is registered before all calls is not compared.
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


def test_calls_in_a_row_are_compared_with_an_exchange() -> None:
    row = "ringfold auto in a row"
    times = {("ib_write_lat", 2, 8): [100.0], (row, 2, 8): [300.0]}
    times["rdma_exchange", 2, 8] = [200.0]
    lines = {line.split()[0]: line.split() for line in rdma.table(times).splitlines()}
    assert lines["rdma_exchange"][-2:] == ["2.00", "1.50"]
    assert lines["ringfold"][-1] == "3.00"


@pytest.mark.deep
@pytest.mark.skipif(
    shutil.which("cc") is None or not Path("/usr/include/infiniband/verbs.h").exists(),
    reason="needs a C compiler and libibverbs-dev",
)
@pytest.mark.parametrize(
    ("name", "device"),
    [
        ("registration_rate", ["none", "1", "1", "4096"]),
        ("rdma_exchange", ["none", "none", "8", "10"]),
    ],
)
def test_a_program_builds_and_asks_for_a_device(
    tmp_path: Path, name: str, device: list[str]
) -> None:
    program = tmp_path / name
    words = ["cc", "-O2", "-Wall", "-Wextra", "-Werror", "-o", str(program)]
    subprocess.run([*words, str(BENCH / f"{name}.c"), "-libverbs"], check=True)
    for arguments, complaint in (([], "usage"), (device, "device")):
        done = subprocess.run(
            [program, *arguments], capture_output=True, text=True, timeout=WATCHDOG_S, check=False
        )
        assert done.returncode != 0 and complaint in done.stderr


def test_all_peers_are_measured_unless_told_otherwise() -> None:
    assert rdma.peers_of(None) == list(PEERS.values())
    assert rdma.peers_of("mpich") == [PEERS["mpich"]]
    assert rdma.peers_of("") == []
    with pytest.raises(SystemExit, match="no peer 'impi'; there are openmpi, mpich"):
        rdma.peers_of("mpich,impi")


@pytest.mark.parametrize("peer", PEERS.values(), ids=PEERS)
def test_each_rank_of_a_peer_has_a_device_and_no_shared_memory(peer: Peer) -> None:
    program = peer.launched(["program", 7])
    line = " ".join(map(str, program.command))
    assert line.startswith(f"mpirun.{peer.name} ") and line.endswith(
        f"-n 2 sh -c {ENTER} program 7"
    )
    assert program.variables["UCX_TLS"] == "rc_v,self"
    shown = [
        subprocess.run(
            ["sh", "-c", ENTER, "printenv", "UCX_NET_DEVICES"],
            env={"PATH": os.environ["PATH"], name: "1"},
            capture_output=True,
            text=True,
            timeout=WATCHDOG_S,
            check=True,
        ).stdout
        for name in ("PMI_RANK", "OMPI_COMM_WORLD_RANK")
    ]
    assert shown == ["rxe1:1\n"] * 2


def ran(monkeypatch: pytest.MonkeyPatch, output: str, sent: Sequence[int]) -> dict[int, float]:
    """Run a peer with 8 bytes and 8 KiB, whose devices sent these numbers of packets."""
    counted = iter([[100, 200], [100 + sent[0], 200 + sent[1]]])
    monkeypatch.setattr(rdma_peers, "sent_packets", lambda: next(counted))
    monkeypatch.setattr(rdma_peers, "output_of_first", lambda programs, limit_s: output)
    return PEERS["mpich"].all_reduce_us([8, 8192], 3, 100, WATCHDOG_S)


TIMES = "a launcher's word\nout 9.0 1.0 3.0 2.0\nout 90.0 20.0 10.0\n"


def test_a_peers_first_call_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ran(monkeypatch, TIMES, [10, 10]) == {8: 2.0, 8192: 15.0}


def test_a_peer_whose_data_the_devices_did_not_send_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    for sent in ([9, 10], [10, 9], [0, 0]):
        with pytest.raises(Failed, match="not the 10 of its data"):
            ran(monkeypatch, TIMES, sent)


def test_a_peer_must_print_times_for_each_size(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Failed, match="1 lines of times for 2 sizes"):
        ran(monkeypatch, "out 9.0 1.0\n", [10, 10])


def test_ringfold_is_compared_with_each_peer_and_all_with_the_devices() -> None:
    text = rdma.table(
        {
            ("ib_write_lat", 2, 8): [10.0],
            ("ringfold rdma", 2, 8): [30.0, 20.0, 90.0],
            ("ringfold tcp", 2, 8): [70.0],
            ("mpich ucx", 2, 8): [60.0],
            ("ringfold rdma", 4, 8): [80.0],
        },
        "rdma",
    )
    found = {tuple(line.split()[:-1][:3]): line.split()[-2:] for line in text.splitlines()[1:]}
    assert found["mpich", "ucx", "2"] == ["6.00", "0.50"]
    assert found["ringfold", "rdma", "2"][-1] == "3.00"
    assert found["ringfold", "tcp", "2"][-1] == "7.00"
    assert found["ringfold", "rdma", "4"][-1] == "8.00"


def test_an_infinite_latency_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    latencies = iter([math.inf, 7.0] + [math.inf] * rdma.LATENCY_TRIES)
    monkeypatch.setattr(rdma, "perftest", lambda *words: [8.0, 100.0, 1.0, 9.0, next(latencies)])
    hosts = RdmaHosts(2)
    assert rdma.latency_us(hosts, 8) == 7.0
    with pytest.raises(SystemExit, match="busy"):
        rdma.latency_us(hosts, 8)


def test_rows_that_the_guest_would_lose_are_refused() -> None:
    for path in ("none", "target/rows.csv", str(ROOT / "rows.csv")):
        assert rdma_guest.kept(path) == path
    for path in ("/tmp/rows.csv", "../rows.csv"):
        with pytest.raises(argparse.ArgumentTypeError, match="keeps only files below"):
            rdma_guest.kept(path)
