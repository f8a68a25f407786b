"""Write the flight record in the format of PyTorch's recorder, for its analyser `torchfrtrace`.

Schema 2.10, as torch's `distributed/flight_recorder` reads it. If the schema leaves a choice,
records are written so that the analyser matches the calls of different ranks:

* Library: the analyser has a fixed list, so calls are named `gloo:all_reduce`, or `nccl:all_reduce`
  for the analyser of torch 2.11; `comm_lib_version` says ringfold.
* Sizes: for a call with a root, all ranks write the same sizes where the analyser compares them;
  for a call on parts of different lengths, each rank writes the lengths of all.
* Messages: the analyser assumes that a call of a group involves all its ranks. So the messages from
  one rank to another with one tag form a group of these two ranks, numbered separately: `0/1->3#7`
  for those with tag 7 from rank 1 to rank 3 in group `0`.

Beyond the schema, an entry has `error`: the error of the call, or None.
"""

import contextlib
import errno
import json
import logging
import os
import pickle
import stat
import time
from pathlib import Path
from typing import Any

import torch

from ringfold import _native
from ringfold.errors import InvalidArgumentError, RingfoldError, in_words
from ringfold.torch.flight_recorder import FATAL, Record, Recorder, Trace, recorder

VERSION = "2.10"
_IS_OLD = torch.__version__ < (2, 12)
"""Whether torch's analyser knows only NCCL's names."""
LIBRARY = "nccl" if _IS_OLD else "gloo"
"""The library's name in the record: one that this torch's analyser accepts."""
ANSWER_S = 1.0
"""Time for the other ranks to report their progress, in seconds."""
CATCH_UP_S = 0.1
"""Time for ranks that are slightly behind to catch up when a rank leaves, in seconds."""
DEFAULT_PREFIX = "ringfold_rank_"
"""Prefix of file names in a folder."""
ELEMENTS = {
    torch.float64: "Double", torch.float32: "Float", torch.float16: "Half",
    torch.bfloat16: "BFloat16", torch.int8: "Char", torch.uint8: "Byte",
    torch.int16: "Short", torch.uint16: "UInt16", torch.int32: "Int",
    torch.uint32: "UInt32", torch.int64: "Long", torch.uint64: "UInt64",
    torch.bool: "Bool", torch.complex32: "ComplexHalf", torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
}  # fmt: skip
"""torch's internal names of its types; other types keep their own."""

log = logging.getLogger("ringfold")


def dump_flight_record(path: "str | os.PathLike[str] | None" = None) -> str:
    """Write the last calls of all groups of this process to files, and return the first one's name.

    `path` is a file name prefix (RINGFOLD_FR_DUMP by default), or a folder: `dumps/fr_` becomes
    `dumps/fr_0` on rank 0, a pickle that `torchfrtrace` reads, and the same as JSON in
    `dumps/fr_json/0.json`. Any thread may call this at any time, also while calls are stuck; no
    other rank takes part. Raises `OSError` if writing fails, or if the folder does not belong to
    this user.
    """
    found = recorder()
    prefix = os.fspath(path) if path is not None else found.settings.dump
    if prefix is None:
        raise InvalidArgumentError(
            "no path for the flight record; pass a path, or set RINGFOLD_FR_DUMP"
        )
    if os.path.isdir(prefix):
        prefix = os.path.join(prefix, DEFAULT_PREFIX)
    with found.writing:
        return _write(prefix, own_rank(found), content(found))


def failed(record: Record, error: BaseException) -> None:
    """Record the error of a call. For a fatal error, also add this rank's call to the error's text
    once, and dump the record.
    """
    record.error = str(error) or type(error).__name__
    record.works = None
    if isinstance(error, FATAL):
        path = after_death(record.trace)
        trace = record.trace
        who = f"rank {trace.rank}" + (
            f", rank {trace.own} of the job," if trace.own != trace.rank else ""
        )
        told = f"; {who} was in {record}" + (f"; flight record in {path}" if path else "")
        # A result that is refused raises the same error in every `wait`.
        if told not in str(error):
            error.args = (f"{error}{told}", *error.args[1:])


def after_death(trace: Trace) -> str | None:
    """Dump the record, once for a failed group, if RINGFOLD_FR_DUMP is set. Return the file's name,
    if any. Never raises.
    """
    if trace.dump is None and trace.recorder.settings.dump is not None:
        try:
            trace.dump = dump_flight_record()
        # Of any class: the group's own error must reach the program.
        except Exception as error:
            log.warning("cannot write the flight record: %s", in_words(error))
    return trace.dump


def before_leaving(trace: Trace) -> None:
    """Dump the record of a rank that leaves while others are behind, or after its group has failed,
    if RINGFOLD_FR_DUMP is set.

    The others' remaining calls may fail because of this rank. Never raises.
    """
    if trace.recorder.settings.dump is None or len(trace.ranks) == 1:
        return
    if is_ahead(trace):
        # The others may be about to finish the same call.
        time.sleep(CATCH_UP_S)
        if is_ahead(trace):
            after_death(trace)
    if trace.fault() is not None:
        after_death(trace)


def is_ahead(trace: Trace) -> bool:
    """Whether this rank has finished collectives that others have not."""
    communicator = trace.communicator
    if communicator is None:
        return False
    try:
        standings = communicator.standing(ANSWER_S)
    except RingfoldError:
        return False
    own = standings[trace.rank]
    return own is not None and any(other is not None and other[0] < own[0] for other in standings)


def _write(prefix: str, rank: int, found: dict[str, Any]) -> str:
    # JSON is written to a folder of its own: the analyser reads every file with the prefix.
    path = Path(f"{prefix}json")
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = _own_folder(path)
    try:
        _put(folder, pickle.dumps(found), f"{rank}.part", os.path.abspath(f"{prefix}{rank}"))
        _put(folder, json.dumps(found, indent=1).encode(), f"{rank}.part", f"{rank}.json")
    finally:
        os.close(folder)
    return f"{prefix}{rank}"


def _own_folder(path: Path) -> int:
    """A descriptor of this user's folder, created if needed. Raises if the folder belongs to
    another user or is world-writable: any user can create names like `/tmp/fr_json`.
    """
    with contextlib.suppress(FileExistsError):
        path.mkdir(mode=0o700)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    found = os.fstat(folder)
    if found.st_uid != os.geteuid() or found.st_mode & stat.S_IWOTH:
        os.close(folder)
        whose = (
            f"belongs to user {found.st_uid}"
            if found.st_uid != os.geteuid()
            else "is world-writable"
        )
        raise PermissionError(
            errno.EPERM, f"the folder {whose}; choose a prefix in a folder of your own", str(path)
        )
    return folder


def _put(folder: int, content: bytes, part: str, name: str) -> None:
    """Write a file within `folder`, and rename it when complete. Follows no link."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(part, dir_fd=folder)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(part, flags, 0o600, dir_fd=folder), "wb") as file:
        file.write(content)
    os.replace(part, name, src_dir_fd=folder, dst_dir_fd=folder)


def own_rank(found: Recorder) -> int:
    """This process' rank in the job."""
    traces = found.live() + [record.trace for record in found.records()[-1:]]
    return traces[0].own if traces else 0


def content(found: Recorder) -> dict[str, Any]:
    """The whole record as a value of plain types."""
    records = found.records()
    traces = {trace.id: trace for trace in [record.trace for record in records] + found.live()}
    config = {
        trace.name: group(trace.name, trace.description, trace.ranks) for trace in traces.values()
    }
    status = {str(trace.id): dict.fromkeys(STATUS, -1) for trace in traces.values()}
    entries, busy = [], set[int]()
    for record in records:
        is_pending = record.is_pending
        state = "started" if is_pending or record.error is not None else "completed"
        if is_pending and not record.is_message:
            # Collectives of a group run one after the other.
            state = "scheduled" if record.trace.id in busy else state
            busy.add(record.trace.id)
        entry = described(record, state)
        if record.is_message:
            name, ranks = stream(record)
            config[name] = group(name, "messages", ranks)
            entry["process_group"] = [name, "messages"]
        else:
            reached = STATUS[: ("scheduled", "started", "completed").index(state) + 1]
            status[str(record.trace.id)] |= dict.fromkeys(reached, record.number)
        entries.append(entry)
    return {
        "version": VERSION,
        "comm_lib_version": f"ringfold {_native.__version__}",
        "pg_config": config,
        "pg_status": status,
        "nccl_comm_state": {},
        "entries": entries,
    }


STATUS = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")


def group(name: str, description: str, ranks: list[int]) -> dict[str, str]:
    """A group in the form of the schema."""
    return {"name": name, "desc": description or "undefined", "ranks": str(ranks)}


def described(record: Record, state: str) -> dict[str, Any]:
    """A call in the form of the schema."""
    trace = record.trace
    inputs, outputs = sizes(record)
    kinds = [
        ELEMENTS.get(noted[2], str(noted[2])) for noted in record.noted if noted[2] is not None
    ]
    return {
        "record_id": record.id,
        "pg_id": trace.id,
        "process_group": [trace.name, trace.description or "undefined"],
        "collective_seq_id": record.number,
        "p2p_seq_id": record.message,
        "op_id": record.id,
        "profiling_name": f"{LIBRARY}:{spelled(record)}",
        "time_created_ns": record.created_ns,
        "time_discovered_started_ns": None if state == "scheduled" else record.created_ns,
        "time_discovered_completed_ns": record.completed_ns or None,
        "input_sizes": inputs,
        "output_sizes": outputs,
        "input_dtypes": kinds if inputs else [],
        "output_dtypes": kinds if outputs else [],
        "state": state,
        "timeout_ms": round(record.terms.timeout_s * 1000),
        "is_p2p": record.is_message,
        "retired": not record.is_pending,
        "error": record.error,
        "frames": [
            {"name": code.co_name, "filename": code.co_filename, "line": str(line)}
            for code, line in record.frames or ()
        ],
    }


def spelled(record: Record) -> str:
    """The call's name in the analyser's list."""
    if record.is_message:
        _, ranks = stream(record)
        source, target = ends(record)
        if record.name == "send":
            return f"send {ranks.index(source)}->{ranks.index(target)}"
        return f"recv {ranks.index(target)}<-{ranks.index(source)}"
    if record.name in _VARIANTS:
        many, uneven = _VARIANTS[record.name]
        if len(record.noted) > 1:
            return many
        if uneven is not None and is_uneven(record):
            return uneven
    return "all_reduce_barrier" if _IS_OLD and record.name == "barrier" else record.name


_VARIANTS = {
    "all_reduce": ("allreduce_coalesced", None),
    "all_gather": ("all_gather_into_tensor_coalesced", "all_gather_v"),
    "reduce_scatter": ("reduce_scatter_tensor_coalesced", "reduce_scatter_v"),
}
"""The names of calls on several tensors, and on parts of different lengths."""


def is_uneven(record: Record) -> bool:
    """Whether the parts of the ranks differ in length."""
    return any(isinstance(counts, list) for *_, counts, _, _ in record.noted)


def sizes(record: Record) -> tuple[list[list[int]], list[list[int]]]:
    """The shapes of inputs and outputs."""
    given = [list(noted[0]) for noted in record.noted if noted[0] is not None]
    filled = [list(noted[1]) for noted in record.noted if noted[1] is not None]
    if record.name in ("broadcast", "reduce"):
        # Only the root has an input, or an output.
        return (given or filled, filled or given)
    if record.name in ("all_gather", "reduce_scatter") and is_uneven(record):
        parts = [
            [count]
            for *_, counts, _, _ in record.noted
            for count in (counts if isinstance(counts, list) else [counts])
        ]
        return (parts, filled) if record.name == "all_gather" else (given, parts)
    return given, filled


def ends(record: Record) -> tuple[int, int]:
    """The sender and the receiver of a message, as ranks of the job. A receive from any rank counts
    as the receiver's own.
    """
    trace = record.trace
    peer = record.noted[0][4] if record.noted else None
    other = trace.own if peer is None else trace.ranks[peer]
    return (trace.own, other) if record.name == "send" else (other, trace.own)


def stream(record: Record) -> tuple[str, list[int]]:
    """The name and the ranks of the group that represents messages of this kind."""
    source, target = ends(record)
    tag = record.noted[0][5] if record.noted else 0
    return f"{record.trace.name}/{source}->{target}" + (f"#{tag}" if tag else ""), sorted(
        {source, target}
    )
