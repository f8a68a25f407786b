"""The record of calls: how torch's own analyser reads it, and when it is written."""

import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.flight_recorder.components import builder, config_manager, loader, types

import ringfold
import ringfold.torch
from ringfold.torch import flight_dump
from ringfold.torch.flight_dump import LIBRARY
from ringfold.torch.flight_recorder import Record, Trace
from ringfold.torch.options import Terms

KNOWS_LENGTHS = "all_gather_v" in types.COLLECTIVES
"""Whether torch's analyser knows calls on parts of different lengths: since torch 2.12."""


def analysed(folder: Path, prefix: str) -> Any:
    """Return the findings of torch's analyser for the dumps in a folder."""
    arguments = config_manager.JobConfig().parse_args([str(folder), "--prefix", prefix])
    details, version = loader.read_dir(arguments)
    return builder.build_db(details, arguments, version)


def names(found: Any, passed: bool = True) -> list[str]:
    """Return the collectives that the analyser considers complete, or broken."""
    return [
        call.collective_name.removeprefix(f"{LIBRARY}:")
        for call in found.collectives
        if call.pass_check == passed
    ]


def entries(path: Path) -> Any:
    return pickle.loads(path.read_bytes())["entries"]


def call_everything(path: str) -> None:
    rank, count = dist.get_rank(), dist.get_world_size()
    x, parts = torch.ones(4, 3), [torch.zeros(4, 3) for _ in range(count)]
    together = torch.zeros(4 * count, 3)
    at_root = parts if rank == 0 else None
    dist.all_reduce(x)
    dist.all_reduce(torch.tensor(1), dist.ReduceOp.MAX, async_op=True).wait()
    dist.broadcast(x.to(torch.float8_e4m3fn), 1)
    dist.reduce(x, 0)
    dist.all_gather(parts, x)
    if KNOWS_LENGTHS:
        dist.all_gather([torch.zeros(length + 1) for length in range(count)], torch.ones(rank + 1))
    dist.all_gather_into_tensor(together, x)
    dist.reduce_scatter_tensor(x, together)
    if KNOWS_LENGTHS:
        lengths = [torch.zeros(length + 1) for length in range(count)]
        dist.reduce_scatter(torch.ones(rank + 1), lengths)
    dist.gather(x, at_root)
    dist.scatter(x, at_root)
    dist.all_to_all_single(torch.zeros(2 * count), torch.ones(2 * count))
    lengths = [torch.ones(rank + 1) for _ in range(count)]
    dist.all_to_all([torch.ones(length + 1) for length in range(count)], lengths)
    dist.barrier()
    group = dist.new_group([0, count - 1], group_desc="ends")
    if rank in (0, count - 1):
        dist.all_reduce(x, group=group)
    ringfold.torch.dump_flight_record(path)


def test_torchs_analyser_finds_every_call_of_all_ranks(ranks: Any, tmp_path: Path) -> None:
    ranks(call_everything, 3, "ringfold", path=str(tmp_path / "fr_")).results()
    found = analysed(tmp_path, "fr_")
    assert names(found, passed=False) == []
    whole = names(found)
    for name, times in {
        "all_reduce": 3, "broadcast": 1, "reduce": 1, "all_gather": 2, "reduce_scatter": 1,
        "gather": 1, "scatter": 1, "all_to_all": 2, "all_gather_v": int(KNOWS_LENGTHS),
        "reduce_scatter_v": int(KNOWS_LENGTHS),
    }.items():  # fmt: skip
        assert whole.count(name) == times, (name, whole)
    # Since 2.14, torch does not pass descriptions to backends.
    assert any(group.desc in ("ends", "undefined") and group.size == 2 for group in found.groups)


def exchange(path: str) -> None:
    """Exchange messages between some ranks, with tags, between collectives."""
    rank = dist.get_rank()
    x = torch.ones(5, dtype=torch.int16)
    dist.all_reduce(torch.ones(1))
    if rank == 0:
        dist.send(x, 1)
        dist.send(x, 2, tag=3)
        dist.send(x[:2], 2)
    if rank == 1:
        dist.recv(x, 0)
    if rank == 2:
        dist.recv(x, 0, tag=3)
        dist.recv(x[:2], 0)
    dist.all_reduce(torch.ones(1))
    ringfold.torch.dump_flight_record(path)


def test_the_analyser_pairs_messages(ranks: Any, tmp_path: Path) -> None:
    ranks(exchange, 3, "ringfold", path=str(tmp_path / "fr_")).results()
    found = analysed(tmp_path, "fr_")
    assert names(found, passed=False) == []
    # The analyser names a pair after the end whose dump it reads first.
    messages = [name for name in names(found) if name != "all_reduce"]
    assert (
        len(messages) == 3 and {*messages} <= {"send 0->1", "recv 1<-0"} and len(names(found)) == 5
    )
    sent = [entry for entry in entries(tmp_path / "fr_0") if entry["is_p2p"]]
    assert [entry["p2p_seq_id"] for entry in sent] == [1, 2, 3]
    assert [entry["input_sizes"] for entry in sent] == [[[5]], [[5]], [[2]]]
    assert {entry["input_dtypes"][0] for entry in sent} == {"Short"}


def differ(how: str) -> Any:
    """Make three calls, the third of which differs on rank 1."""
    odd = dist.get_rank() == 1
    x = torch.ones(4, 3)
    for _ in range(2):
        dist.all_reduce(x)
    calls: dict[str, Any] = {
        "call": lambda: dist.broadcast(x, 0) if odd else dist.all_reduce(x),
        "shape": lambda: dist.all_reduce(torch.ones(4, 4) if odd else x),
        "type": lambda: dist.all_reduce(x.int() if odd else x),
    }
    with pytest.raises(ringfold.MismatchError) as caught:
        calls[how]()
    return str(caught.value)


FOUND = {
    "call": ["COLLECTIVE_TYPE_MISMATCH", "'all_reduce'", "'broadcast'"],
    "shape": ["SIZE_OR_SYNTAX_MISMATCH", "'[[4, 3]]'", "'[[4, 4]]'"],
    "type": ["COLLECTIVE_DTYPE_MISMATCH", "'Float'", "'Int'"],
}


@pytest.mark.parametrize(
    "how",
    # The analyser takes seconds to start.
    ["shape", *(pytest.param(how, marks=pytest.mark.deep) for how in ("call", "type"))],
)
def test_a_mismatch_is_written_down_and_found_by_torchfrtrace(
    ranks: Any, tmp_path: Path, how: str
) -> None:
    texts = ranks(
        differ, 3, "ringfold", how=how, variables={"RINGFOLD_FR_DUMP": str(tmp_path / "fr_")}
    ).results()
    for rank, text in enumerate(texts):
        assert text.endswith(f"flight record in {tmp_path}/fr_{rank}"), text
        assert f"rank {rank} was in" in text and "collective 3 of group" in text
    assert "torch.float32 [4, 3]" in texts[0] and "all_reduce(SUM)" in texts[0]
    printed = subprocess.run(
        [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace", str(tmp_path)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    told = printed.stdout + printed.stderr
    # The analyser cannot know which rank is right: the culprit is any rank that differs from the
    # first dump that it reads.
    assert all(
        words in told
        for words in ["Collective sequence number: 3 has errors", "Culprit rank", *FOUND[how]]
    ), told


@pytest.fixture
def record() -> Iterator[Record]:
    """The record of a call of a group of one rank."""
    with ringfold.init(0, 1) as comm:
        trace = Trace(comm._native, "7", [0], 0)
        shape = [4]
        noted = [(shape, shape, torch.float32, 4, 0, 0)]
        yield trace.begin_collective("all_reduce", Terms(False, 1.0), noted)


def test_a_record_that_cannot_be_written_does_not_hide_the_error(
    record: Record, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any) -> None:
        raise TypeError("not to be pickled")

    found = record.trace.recorder
    monkeypatch.setattr(found, "settings", found.settings._replace(dump="/nowhere/fr_"))
    monkeypatch.setattr(flight_dump, "content", refuse)
    error = ringfold.AbortedError("aborted by rank 0: no disk")
    flight_dump.failed(record, error)
    assert str(error).startswith("aborted by rank 0: no disk; rank 0 was in all_reduce(SUM)")
    assert "not to be pickled" in caplog.text


def test_the_text_of_an_error_that_is_raised_again_grows_once(record: Record) -> None:
    error = ringfold.CorruptError("changed in transit")
    flight_dump.failed(record, error)
    text = str(error)
    assert "rank 0 was in all_reduce(SUM) of torch.float32 [4], collective 1 of group `7`" in text
    flight_dump.failed(record, error)
    assert str(error) == text


def stay_away(path: str) -> None:
    """Keep rank 1 away until the other ranks time out."""
    dist.all_reduce(torch.ones(2))
    # The timeout given to `init` is also that of joining.
    world: Any = dist.group.WORLD
    world.set_timeout(timedelta(seconds=0.5))
    if dist.get_rank() == 1:
        while not Path(path + "1").exists():
            time.sleep(0.01)
        return
    with pytest.raises(ringfold.RingfoldTimeoutError):
        dist.all_reduce(torch.ones(2))


def test_ranks_that_wait_and_ranks_that_do_not_write_down_a_timeout(
    ranks: Any, tmp_path: Path
) -> None:
    path = str(tmp_path / "fr_")
    ranks(stay_away, 3, "ringfold", path=path, variables={"RINGFOLD_FR_DUMP": path}).results()
    (broken,) = [call for call in analysed(tmp_path, "fr_").collectives if call.missing_ranks]
    assert broken.missing_ranks == {1} and broken.collective_seq_id == 2
    last = entries(tmp_path / "fr_0")[-1]
    assert last["state"] == "started" and last["timeout_ms"] == 500


def be_under_way(folder: str) -> Any:
    """Keep rank 1 away until rank 0 has dumped the calls that it waits for."""
    seen = Path(folder) / "fr_0"
    tensors = [torch.ones(size) for size in (1, 2, 3)]
    dist.all_reduce(tensors[0])
    if dist.get_rank() == 1:
        while not seen.exists():
            time.sleep(0.005)
    works = [dist.all_reduce(x, async_op=True) for x in tensors]
    if dist.get_rank() == 0:
        ringfold.torch.dump_flight_record(folder + "/fr_")
    for work in works:
        work.wait()
    return ringfold.torch.dump_flight_record(folder)


def test_a_record_says_what_is_done_begun_and_still_to_come(ranks: Any, tmp_path: Path) -> None:
    after = ranks(be_under_way, 2, "ringfold", folder=str(tmp_path)).result(0)
    assert [entry["state"] for entry in entries(tmp_path / "fr_0")] == [
        "completed",
        "started",
        "scheduled",
        "scheduled",
    ]
    assert json.loads((tmp_path / "fr_json" / "0.json").read_text())["entries"][1][
        "input_sizes"
    ] == [[1]]
    for file in (tmp_path / "fr_0", tmp_path / "fr_json" / "0.json"):
        assert file.stat().st_mode & 0o077 == 0, file
    found = pickle.loads(Path(after).read_bytes())
    assert [entry["state"] for entry in found["entries"]] == ["completed"] * 4
    assert set(found) == {
        "version",
        "comm_lib_version",
        "pg_config",
        "pg_status",
        "nccl_comm_state",
        "entries",
    }
    assert found["version"] == "2.10"
    assert list(found["pg_status"].values()) == [
        dict.fromkeys(
            ("last_enqueued_collective", "last_started_collective", "last_completed_collective"), 4
        )
    ]
    created = [entry["time_created_ns"] for entry in found["entries"]]
    assert created == sorted(created)
    assert all(
        entry["time_discovered_completed_ns"] >= entry["time_created_ns"]
        for entry in found["entries"]
    )


def remember(path: str) -> Any:
    x = torch.ones(1000)
    gone = weakref.ref(x)
    for _ in range(5):
        dist.all_reduce(x)
        dist.all_reduce(x, async_op=True).wait()
    del x
    gc.collect()
    dist.all_reduce(torch.ones(1))
    ringfold.torch.dump_flight_record(path)
    return gone() is None


def test_a_ring_keeps_the_last_calls_and_no_tensor(ranks: Any, tmp_path: Path) -> None:
    path = str(tmp_path / "fr_")
    variables = {"RINGFOLD_FR_BUFFER_SIZE": "3", "RINGFOLD_FR_FRAMES": "1"}
    assert ranks(remember, 2, "ringfold", path=path, variables=variables).results() == [True, True]
    found = entries(Path(path + "0"))
    assert [entry["collective_seq_id"] for entry in found] == [9, 10, 11]
    assert any(frame["name"] == "remember" for frame in found[0]["frames"])


def be_asked(folder: str) -> Any:
    """Signal rank 0 while it is stuck outside Python."""
    if dist.get_rank() == 0:
        future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGUSR2)).start()
        future.wait()
    else:
        while not Path(folder, "fr_0").exists():
            time.sleep(0.01)
        dist.all_reduce(torch.ones(1))


@pytest.mark.parametrize("name", ["USR2", "SIGUSR2"])
def test_a_signal_has_the_record_written_while_a_call_is_stuck(
    ranks: Any, tmp_path: Path, name: str
) -> None:
    variables = {"RINGFOLD_FR_DUMP": str(tmp_path / "fr_"), "RINGFOLD_FR_SIGNAL": name}
    ranks(be_asked, 2, "ringfold", folder=str(tmp_path), variables=variables).results()
    assert [entry["state"] for entry in entries(tmp_path / "fr_0")] == ["started"]


def handle_it_oneself() -> Any:
    seen: list[int] = []
    signal.signal(signal.SIGUSR2, lambda number, _: seen.append(number))
    dist.init_process_group(
        "ringfold", store=dist.HashStore(), rank=0, world_size=1, timeout=timedelta(seconds=20)
    )
    os.kill(os.getpid(), signal.SIGUSR2)
    while not seen:
        time.sleep(0.01)
    dist.destroy_process_group()
    return True


def test_a_programs_own_handler_stays(ranks: Any, tmp_path: Path) -> None:
    variables = {"RINGFOLD_FR_DUMP": str(tmp_path / "fr_"), "RINGFOLD_FR_SIGNAL": "USR2"}
    assert ranks(handle_it_oneself, 1, None, variables=variables).result(0)
    assert list(tmp_path.glob("fr_*")) == []


def dump_nowhere() -> None:
    ringfold.torch.dump_flight_record()


def test_without_a_path_there_is_nothing_to_write_to(ranks: Any) -> None:
    error = ranks(dump_nowhere, 1, "ringfold").error(0)
    assert isinstance(error, ringfold.InvalidArgumentError)


def leave_as_the_root() -> str | None:
    """Send rank 0's data and exit; rank 0 does not learn that the others are in another call."""
    x = torch.ones(5)
    dist.all_reduce(x)
    if dist.get_rank() == 0:
        dist.broadcast(x, 0)
        return None
    with pytest.raises(ringfold.RingfoldError) as caught:
        dist.all_gather([torch.zeros(5)] * dist.get_world_size(), x)
    return type(caught.value).__name__


def test_a_root_that_ended_in_good_order_has_its_record_written_too(
    ranks: Any, tmp_path: Path
) -> None:
    variables = {"RINGFOLD_FR_DUMP": str(tmp_path / "fr_"), "RINGFOLD_TRANSPORT": "tcp"}
    ranks(leave_as_the_root, 3, "ringfold", variables=variables).results()
    for rank, name in enumerate(["broadcast", "all_gather", "all_gather"]):
        assert entries(tmp_path / f"fr_{rank}")[-1]["profiling_name"] == f"{LIBRARY}:{name}"


def reduce_together() -> None:
    for _ in range(3):
        dist.all_reduce(torch.ones(5))
    # A message is not a collective: its receiver knows that the sender has finished it.
    other = 1 - dist.get_rank()
    sent = dist.isend(torch.ones(1), other)
    dist.recv(torch.ones(1), other)
    sent.wait()


def test_nothing_is_written_when_all_ends_well(ranks: Any, tmp_path: Path) -> None:
    ranks(
        reduce_together, 2, "ringfold", variables={"RINGFOLD_FR_DUMP": str(tmp_path / "fr_")}
    ).results()
    assert not list(tmp_path.glob("fr_*"))


def refusal(path: Path) -> str:
    with pytest.raises(OSError) as caught:
        ringfold.torch.dump_flight_record(path)
    return str(caught.value)


def test_links_and_folders_of_others_are_not_written_through(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "a_json").mkdir()
    for name in ("0.part", "0.json"):
        (tmp_path / "a_json" / name).symlink_to(victim)
    (tmp_path / "a_0").symlink_to(victim)
    assert ringfold.torch.dump_flight_record(tmp_path / "a_") == f"{tmp_path}/a_0"
    assert "entries" in json.loads((tmp_path / "a_json" / "0.json").read_text())
    assert "entries" in pickle.loads((tmp_path / "a_0").read_bytes())
    assert victim.read_text() == "precious"
    # A folder that is a link, a world-writable folder, and a folder of another user.
    (tmp_path / "b_json").symlink_to(tmp_path / "a_json")
    refusal(tmp_path / "b_")
    (tmp_path / "c_json").mkdir()
    (tmp_path / "c_json").chmod(0o777)
    assert "is world-writable" in refusal(tmp_path / "c_")
    if os.geteuid() == 0:
        (tmp_path / "d_json").mkdir()
        os.chown(tmp_path / "d_json", 65534, -1)
        assert "belongs to user 65534" in refusal(tmp_path / "d_")
