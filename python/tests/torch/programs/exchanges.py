"""Messages, objects, and large numbers of simultaneous calls."""

import pickle
import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from programs.handles import within
from programs.layouts import Placed, Wrong
from programs.oracle import bits
from programs.steps import Many, Message, Messages, Objects

Waits = tuple[Callable[[], None], Callable[[], None]]


def values(message: Message) -> torch.Tensor:
    """Return the content of a message."""
    count = message.count
    if message.dtype == "bool":
        return torch.arange(count) % 3 == message.salt % 3
    return bits(message.dtype, count, message.salt)


def messages(step: Messages, rank: int) -> list[Waits]:
    """Start or make all messages of this rank; return a check and a wait for each started one."""
    if step.way == "batch":
        return batch(step, rank)
    found: list[Waits] = []
    is_waiting = step.way == "waiting"
    for message in step.messages:
        if message.source == rank:
            sent = Placed(message.layout, message.dtype, message.count, values(message))
            if is_waiting:
                dist.send(sent.tensor, message.target, tag=message.tag)
                sent.check(None)
            else:
                work = dist.isend(sent.tensor, message.target, tag=message.tag)
                found.append((lambda sent=sent: sent.check(None), work.wait))  # type: ignore[misc]
        elif message.target == rank:
            found += received(step, message, is_waiting)
    return found


def received(step: Messages, message: Message, is_waiting: bool) -> list[Waits]:
    """Start to receive a message, or receive it."""
    got = Placed(message.layout, message.dtype, message.count, None)
    source = None if step.from_any else message.source
    if is_waiting:
        sender = dist.recv(got.tensor, source, tag=message.tag)
        if sender != message.source:
            raise Wrong(f"{message} came from {sender}")
        got.check(values(message))
        return []
    work = dist.irecv(got.tensor, source, tag=message.tag)
    return [(lambda: got.check(values(message)), work.wait)]


def batch(step: Messages, rank: int) -> list[Waits]:
    """Exchange all messages of this rank as one batch."""
    placed: list[tuple[Placed, torch.Tensor | None]] = []
    operations = []
    for message in step.messages:
        if message.source == rank:
            sent = Placed(message.layout, message.dtype, message.count, values(message))
            placed.append((sent, None))
            operations.append(
                dist.P2POp(dist.isend, sent.tensor, message.target, tag=message.tag)
            )
        if message.target == rank:
            got = Placed(message.layout, message.dtype, message.count, None)
            placed.append((got, values(message)))
            operations.append(dist.P2POp(dist.irecv, got.tensor, message.source, tag=message.tag))
    if not operations:
        return []
    works = dist.batch_isend_irecv(operations)
    if len(works) not in (1, len(operations)):
        raise Wrong(f"{len(works)} handles of {len(operations)} messages")

    def wait() -> None:
        for work in works:
            work.wait()

    def check() -> None:
        for each, due in placed:
            each.check(due)

    return [(check, wait)]


def thing(salt: int, rank: int) -> Any:
    """Return an object for a rank."""
    random_ = random.Random(salt * 100 + rank)
    kind = random_.randrange(5)
    if kind == 0:
        return {"rank": rank, "list": [random_.random() for _ in range(random_.randrange(20))]}
    if kind == 1:
        return random_.randbytes(random_.choice((0, 1, 1000, 100_000)))
    if kind == 2:
        return (rank, None, "text" * random_.randrange(30), {1, 2, salt})
    if kind == 3:
        return torch.arange(random_.randrange(50)) + rank
    return None


def check_objects(found: list[Any], due: list[Any]) -> None:
    """Compare objects by their pickles, or else by value."""
    if [pickle.dumps(each) for each in found] == [pickle.dumps(each) for each in due]:
        return
    if len(found) != len(due) or not all(map(is_same, found, due)):
        raise Wrong(f"objects {str(found)[:300]} for {str(due)[:300]}")


def is_same(one: Any, other: Any) -> bool:
    """Return whether two objects are equal."""
    if isinstance(other, torch.Tensor):
        return isinstance(one, torch.Tensor) and torch.equal(one, other)
    return type(one) is type(other) and bool(one == other)


def objects(step: Objects, rank: int, ranks: int) -> None:
    """Make one call on objects."""
    all_ = [thing(step.salt, each) for each in range(ranks)]
    found: list[Any] = [None] * ranks
    is_root = rank == step.root
    match step.name:
        case "all_gather":
            dist.all_gather_object(found, all_[rank])
            check_objects(found, all_)
        case "broadcast":
            found = list(all_) if is_root else found
            dist.broadcast_object_list(found, step.root)
            check_objects(found, all_)
        case "gather":
            dist.gather_object(all_[rank], found if is_root else None, step.root)
            check_objects(found, all_ if is_root else [None] * ranks)
        case "scatter":
            one: list[Any] = [None]
            dist.scatter_object_list(one, all_ if is_root else None, step.root)
            check_objects(one, [all_[rank]])
        case "send" if ranks > 1:
            target = (step.root + 1) % ranks
            if is_root:
                dist.send_object_list(all_, target)
            elif rank == target:
                dist.recv_object_list(found, step.root)
                check_objects(found, all_)


def many(step: Many, rank: int, ranks: int) -> None:
    """Start `depth` calls of three elements, and check them all."""
    if rank == step.late:
        import time

        time.sleep(step.late_ms / 1000)
    depth = step.depth
    xs = (torch.arange(3 * depth, dtype=torch.int64) * (rank + 1)).view(depth, 3)
    rows = list(xs)
    total = ranks * (ranks + 1) // 2
    if step.kind == "messages":
        factor = messages_around(rows, rank, ranks)
    elif step.kind == "broadcasts":
        started = [dist.broadcast(row, step.late, async_op=True) for row in rows]
        factor = step.late + 1
    else:
        started = [dist.all_reduce(row, async_op=True) for row in rows]
        factor = total
    if step.kind != "messages":
        if step.drops:
            started.clear()
            dist.barrier()
        for work in started:
            work.wait()
    due = torch.arange(3 * depth, dtype=torch.int64).view(depth, 3) * factor

    def check() -> None:
        if not torch.equal(xs, due):
            places = (xs != due).any(1).nonzero().flatten()
            at = int(places[0])
            text = f"{len(places)} of {depth} calls, the first {at}: {rows[at].tolist()}"
            raise Wrong(f"{text} for {due[at].tolist()}")

    (within if step.drops else lambda check: check())(check)


def messages_around(rows: list[torch.Tensor], rank: int, ranks: int) -> int:
    """Replace the rows by those of the previous rank; return the factor of the received rows."""
    if ranks == 1:
        return 1
    got = [torch.zeros_like(row) for row in rows]
    source = (rank - 1) % ranks
    works = [dist.irecv(row, source) for row in got]
    works += [dist.isend(row, (rank + 1) % ranks) for row in rows]
    for work in works:
        work.wait()
    for row, other in zip(rows, got, strict=True):
        row.copy_(other)
    return source + 1
