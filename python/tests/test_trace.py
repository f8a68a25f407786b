"""Timelines of recorded calls: `ringfold trace` and `ringfold run --trace`."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ringfold

WATCHDOG_S = 120.0
COMMAND = [sys.executable, "-m", "ringfold"]
CALLS = 20


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command line that ends without a signal."""
    return subprocess.run(
        [*COMMAND, *words], capture_output=True, text=True, timeout=WATCHDOG_S, check=False
    )


def timeline(folder: Path) -> tuple[list[dict[str, Any]], str]:
    """Return the events of a folder's timeline, and the command's messages."""
    ended = run("trace", folder, "-o", folder / "job.json")
    assert ended.returncode == 0, ended.stderr
    return json.loads((folder / "job.json").read_text())["traceEvents"], ended.stderr


def calls_of(events: list[dict[str, Any]], rank: int, name: str) -> list[dict[str, Any]]:
    """Return the collectives of a rank, in order."""
    slices = (event for event in events if event["ph"] == "X" and event["pid"] == rank)
    return sorted((s for s in slices if s["name"].startswith(name)), key=lambda s: s["ts"])


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the test's jobs record their calls."""
    folder = tmp_path / "calls"
    monkeypatch.setenv("RINGFOLD_TRACE", str(folder))
    return folder


def come_late(comm: ringfold.Communicator) -> None:
    data = np.ones(50_000, np.float32)
    for _ in range(CALLS):
        if comm.rank == 1:
            time.sleep(0.03)
        comm.all_reduce(data)


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_every_call_is_there_and_the_late_rank_is_named(
    jobs: Any, recorded: Path, transport: str
) -> None:
    jobs(come_late, 3, init={"transport": transport}).results()
    events, said = timeline(recorded)
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert [names[rank].split(" (")[0] for rank in range(3)] == ["rank 0", "rank 1", "rank 2"]
    for rank in range(3):
        calls = calls_of(events, rank, "all_reduce")
        assert [call["args"]["sequence"] for call in calls] == list(range(1, CALLS + 1))
        assert all(call["args"]["bytes"] == 200_000 for call in calls)
        assert all(call["args"]["dtype"] == "float32" for call in calls)
        ends = [call["ts"] + call["dur"] for call in calls]
        begins = [call["ts"] for call in calls]
        assert all(end <= begin for end, begin in zip(ends, begins[1:], strict=False))
    late = [call["args"]["last_to_enter"] for call in calls_of(events, 0, "all_reduce")]
    # On a busy machine, another rank may be later than the sleep, but not always.
    assert late.count("rank 1") > CALLS // 2
    assert "rank 1 was the last to enter" in said.splitlines()[1]
    prompt = calls_of(events, 0, "all_reduce")
    assert max(call["args"]["waited_us"] for call in prompt) > 5_000
    # An arrow leads from the late rank to the call of a rank that waited.
    tails = {e["id"]: e for e in events if e["ph"] == "s"}
    heads = {e["id"]: e for e in events if e["ph"] == "f"}
    assert tails and tails.keys() == heads.keys()
    assert any((tails[i]["pid"], heads[i]["pid"]) == (1, 0) for i in tails)


def make_all_kinds(comm: ringfold.Communicator) -> None:
    peer = 1 - comm.rank
    data, theirs = np.full(10, comm.rank, np.float64), np.zeros(10)
    part = comm.split(color=comm.rank // 2, key=-comm.rank)
    assert part is not None
    if comm.rank == 0:
        comm.send(data, peer, tag=5)
    else:
        comm.recv(theirs, peer, tag=5)
    works = [comm.all_reduce(np.ones(1000 * n, np.float32), async_=True) for n in (1, 2, 3)]
    for work in works:
        work.wait()
    part.broadcast(data, root=0)
    part.close()
    comm.barrier()


def test_messages_asynchronous_calls_and_parts_are_there(jobs: Any, recorded: Path) -> None:
    jobs(make_all_kinds, 2).results()
    events, _ = timeline(recorded)
    tracks = {e["args"]["name"] for e in events if e["name"] == "thread_name" and e["pid"] == 0}
    assert len(tracks) == 2
    for rank in range(2):
        assert len(calls_of(events, rank, "all_reduce")) == 3
        assert len(calls_of(events, rank, "barrier")) == 1
        [broadcast] = calls_of(events, rank, "broadcast")
        # The part's first rank is rank 1 of the job.
        assert broadcast["args"]["root"] == "rank 1" and broadcast["tid"] == 1
    [send] = [e for e in events if e["ph"] == "b" and e["name"].startswith("send")]
    [receive] = [e for e in events if e["ph"] == "b" and e["name"].startswith("recv")]
    assert (send["pid"], send["args"]["peer"], send["args"]["tag"]) == (0, "rank 1", 5)
    assert (receive["pid"], receive["args"]["peer"]) == (1, "rank 0")
    assert any(e["ph"] == "s" and e["name"] == "message" for e in events)


def die_in_the_middle(comm: ringfold.Communicator) -> str:
    for _ in range(CALLS):
        comm.all_reduce(np.ones(10, np.float32))
    if comm.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        comm.all_reduce(np.ones(10, np.float32))
    except ringfold.PeerFailedError as error:
        return str(error)
    return ""


def test_the_calls_of_a_killed_rank_are_there(jobs: Any, recorded: Path) -> None:
    job = jobs(die_in_the_middle, 2)
    assert "rank 1" in job.result(0) and job.status(1) == -signal.SIGKILL
    events, _ = timeline(recorded)
    assert len(calls_of(events, 1, "all_reduce")) == CALLS
    last = calls_of(events, 0, "all_reduce")[-1]
    assert last["args"]["sequence"] == CALLS + 1 and last["name"].endswith("(never ended)")
    [failure] = [e for e in events if e["ph"] == "i"]
    assert failure["pid"] == 0 and "rank 1" in failure["name"]


def test_the_last_calls_are_kept(
    jobs: Any, recorded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RINGFOLD_TRACE_CALLS", "8")
    jobs(come_late, 2).results()
    events, said = timeline(recorded)
    for rank in range(2):
        sequences = [c["args"]["sequence"] for c in calls_of(events, rank, "all_reduce")]
        assert sequences == list(range(CALLS - 7, CALLS + 1))
    assert f"the first {CALLS - 8} calls" in said and "RINGFOLD_TRACE_CALLS=32" in said


def test_damaged_files_are_named_and_left_out(jobs: Any, recorded: Path) -> None:
    jobs(come_late, 2).results()
    files = sorted(recorded.glob("*.ringfold-calls"))
    assert len(files) == 2
    whole = files[0].read_bytes()
    (recorded / "a.ringfold-calls").write_bytes(b"")
    (recorded / "b.ringfold-calls").write_bytes(whole[:5000])
    (recorded / "c.ringfold-calls").write_bytes(os.urandom(100_000))
    (recorded / "d.ringfold-calls").mkdir()
    events, said = timeline(recorded)
    assert all(len(calls_of(events, rank, "all_reduce")) == CALLS for rank in range(2))
    for name in "abcd":
        assert f"{name}.ringfold-calls`: " in said, said


def test_a_folder_without_calls_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        ended = run("trace", folder, "-o", tmp_path / "job.json")
        assert ended.returncode == 1 and str(folder) in ended.stderr
    assert "RINGFOLD_TRACE=" in run("trace", tmp_path).stderr


PROGRAM = """
import sys, numpy as np, ringfold
with ringfold.init() as comm:
    for _ in range(3):
        comm.all_reduce(np.ones(3, np.float32))
    comm.barrier()
sys.exit(int(sys.argv[1]) * comm.rank)
"""


@pytest.mark.parametrize("status", [0, 5])
def test_run_records_a_job_in_one_step(tmp_path: Path, status: int) -> None:
    file = tmp_path / "job.json"
    program = [sys.executable, "-c", PROGRAM, str(status)]
    ended = run("run", "--ranks", "2", "--trace", file, "--", *program)
    assert ended.returncode == status, ended.stderr
    events = json.loads(file.read_text())["traceEvents"]
    assert all(len(calls_of(events, rank, "all_reduce")) == 3 for rank in range(2))
    assert [path.name for path in tmp_path.iterdir()] == ["job.json"]


def test_files_that_are_no_records_are_left_out(jobs: Any, recorded: Path) -> None:
    """Each bad file is named with its defect, others are read, no signal ends the command."""
    jobs(die_in_the_middle, 2).result(0)
    [good, other] = sorted(recorded.glob("*.ringfold-calls"))
    whole = good.read_bytes()
    bad = {
        "empty": b"",
        # Has only five of the 21 records.
        "cut": whole[: 2112 + 5 * 64],
        "head": whole[:2048],
        "random": os.urandom(10_000),
    }
    for name, content in bad.items():
        (recorded / f"{name}.ringfold-calls").write_bytes(content)
    # Claims many records, but the file is almost entirely a hole.
    claims = bytearray(whole)
    claims[48:56] = claims[1080:1088] = (1 << 16).to_bytes(8, sys.byteorder)
    (recorded / "hole.ringfold-calls").write_bytes(claims[:4096])
    os.truncate(recorded / "hole.ringfold-calls", 1 << 40)
    os.mkfifo(recorded / "fifo.ringfold-calls")
    (recorded / "folder.ringfold-calls").mkdir()
    (recorded / "device.ringfold-calls").symlink_to("/dev/zero")
    (recorded / "dangling.ringfold-calls").symlink_to("nothing")
    # Bytes after the records are ignored, and a link is followed.
    os.truncate(other, other.stat().st_size + (1 << 30))
    good.rename(recorded / "moved")
    good.symlink_to("moved")
    events, said = timeline(recorded)
    for name in [*bad, "fifo", "folder", "device", "dangling"]:
        assert f"{name}.ringfold-calls`: " in said, said
    assert "hole.ringfold-calls`: " in said and "calls cannot be read" in said
    for rank in range(2):
        assert len(calls_of(events, rank, "all_reduce")) >= CALLS


def test_the_timeline_is_valid(jobs: Any, recorded: Path) -> None:
    """Events follow the Trace Event Format: the fields of each phase, and matching pairs."""
    jobs(make_all_kinds, 2).results()
    events, _ = timeline(recorded)
    named = {(e["pid"], e.get("tid")) for e in events if e["name"] in NAMES}
    open_slices: dict[tuple[str, str], float] = {}
    for event in events:
        phase = event["ph"]
        assert phase in "MXbesfi" and isinstance(event["pid"], int) and event["name"]
        if phase == "M":
            assert event["name"] in NAMES | ORDERS and event["args"]
            continue
        assert (event["pid"], event["tid"]) in named and (event["pid"], None) in named
        assert event["ts"] >= 0
        if phase == "X":
            assert event["dur"] >= 0 and event["cat"]
        if phase in "besf":
            assert event["id"] and event["cat"]
        if phase == "b":
            open_slices[event["cat"], event["id"]] = event["ts"]
        if phase == "e":
            assert event["ts"] >= open_slices.pop((event["cat"], event["id"]))
    assert not open_slices
    for phase in "sf":
        ids = [(e["cat"], e["id"]) for e in events if e["ph"] == phase]
        assert len(set(ids)) == len(ids) > 0
    slices = [e for e in events if e["ph"] == "X"]
    for track in {(e["pid"], e["tid"]) for e in slices}:
        ends = 0.0
        for event in (e for e in slices if (e["pid"], e["tid"]) == track):
            # Slices of a track are in order and do not overlap, up to the rounding of microseconds.
            assert event["ts"] >= ends - 0.002
            ends = event["ts"] + event["dur"]


NAMES = {"process_name", "thread_name"}
ORDERS = {"process_sort_index", "thread_sort_index"}


def test_a_job_without_calls_has_no_timeline(tmp_path: Path) -> None:
    ended = run("run", "--ranks", "2", "--trace", tmp_path / "job.json", "--", "true")
    assert ended.returncode == 1 and "no timeline" in ended.stderr
    again = run("run", "--ranks", "2", "--trace", tmp_path / "job.json", "--", "true")
    assert again.returncode == 1 and "exists" in again.stderr


@pytest.mark.deep
def test_clocks_are_compared_by_the_calls(tmp_path: Path) -> None:
    """Rank 1's clock is a day ahead, in its own time namespace."""
    ahead = ["unshare", "--time", "--monotonic", "86400", "--boottime", "86400", "--"]
    if subprocess.run([*ahead, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no time namespaces for this user")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    script = 'if [ $RINGFOLD_RANK = 1 ]; then exec "$@"; else shift 7; exec "$@"; fi'
    file = tmp_path / "job.json"
    words = ["sh", "-c", script, "sh", *ahead, sys.executable, str(program), "0"]
    ended = run("run", "--ranks", "2", "--trace", file, "--", *words)
    assert ended.returncode == 0, ended.stderr
    assert "was compared by calls" in ended.stderr
    events = json.loads(file.read_text())["traceEvents"]
    calls = [calls_of(events, rank, "all_reduce") for rank in range(2)]
    for one, other in zip(*calls, strict=True):
        # The calls overlap, as they would with a common clock.
        assert one["ts"] <= other["ts"] + other["dur"] + 1
        assert other["ts"] <= one["ts"] + one["dur"] + 1
