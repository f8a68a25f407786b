"""The job's secret under torch: clients of the store cannot join, forged pickles are not loaded."""

import datetime
import os
import socket
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from ringfold import AbortedError, BootstrapError, CorruptError, RingfoldError, _native
from ringfold.torch import bootstrap
from ringfold.torch.sealed import TRAILER_BYTES, Seal, SealedCall

SECRET = "of the tests"
ON_NETWORK = {"RINGFOLD_SECRET": SECRET, "RINGFOLD_TRANSPORT": "tcp"}


def call_with_bytes() -> Any:
    """Make all collectives that move bytes, and exchange objects."""
    rank, count = dist.get_rank(), dist.get_world_size()
    after, before = (rank + 1) % count, (rank - 1) % count
    found: dict[str, Any] = {
        "all_gather": [None] * count,
        "gather": [None] * count if rank == 1 else None,
    }
    dist.all_gather_object(found["all_gather"], "x" * rank)
    dist.gather_object(("from", rank), found["gather"], 1)
    found["broadcast"] = [rank, "x" * rank]
    dist.broadcast_object_list(found["broadcast"], 1)
    found["scatter"] = [None]
    dist.scatter_object_list(found["scatter"], [("to", to) for to in range(count)], 1)
    if rank == 0:
        dist.send_object_list(["sent", {}], 1)
    elif rank == 1:
        found["received"] = [None, None]
        dist.recv_object_list(found["received"], 0)
    # Bytes that are not objects: two messages in flight, received in reverse order, and one from
    # any rank.
    works = [
        dist.isend(torch.full((3,), 10 * rank + index, dtype=torch.uint8), after)
        for index in range(3)
    ]
    taken = [torch.zeros(3, dtype=torch.uint8) for _ in range(3)]
    first, second = (dist.irecv(taken[index], before) for index in range(2))
    second.wait()
    first.wait()
    assert dist.recv(taken[2]) == before
    for work in works:
        work.wait()
    found["messages"] = [int(one[1]) for one in taken]
    given = torch.arange(2 * count, dtype=torch.uint8) + 10 * rank
    found["all_to_all"] = torch.empty_like(given)
    dist.all_to_all_single(found["all_to_all"], given)
    # A type that is moved as bytes, with uneven lengths and empty.
    uneven = [torch.zeros(other, dtype=torch.float8_e5m2fnuz) for other in range(count)]
    dist.all_gather(uneven, torch.full((rank,), 1.0).to(torch.float8_e5m2fnuz))
    found["uneven"] = [one.float().tolist() for one in uneven]
    return is_sealed(), found


def receive_in_inference_mode() -> Any:
    """Receive bytes, which a thread outside of this mode copies to their place."""
    rank = dist.get_rank()
    with torch.inference_mode():
        taken = torch.zeros(4, dtype=torch.uint8)
        parts = [torch.zeros(2, dtype=torch.uint8) for _ in range(2)]
        work = dist.irecv(taken, 1 - rank)
        dist.send(torch.full((4,), 7 + rank, dtype=torch.uint8), 1 - rank)
        # The handle is dropped.
        dist.all_gather(parts, torch.full((2,), 3 + rank, dtype=torch.uint8), async_op=True)
        dist.barrier()
        work.wait()
    return is_sealed(), taken.tolist(), [part.tolist() for part in parts]


def test_bytes_arrive_in_inference_mode(ranks: Any) -> None:
    outcome = ranks(receive_in_inference_mode, 2, "ringfold", variables=ON_NETWORK)
    for rank, found in enumerate(outcome.results()):
        assert found == (True, [8 - rank] * 4, [[3, 3], [4, 4]])


def is_sealed() -> bool:
    return isinstance(dist.group.WORLD._call("send", None), SealedCall)


@pytest.mark.parametrize(
    "variables", [ON_NETWORK, {"RINGFOLD_SECRET": SECRET}, {"RINGFOLD_TRANSPORT": "tcp"}]
)
def test_bytes_and_objects_arrive(ranks: Any, variables: dict[str, str]) -> None:
    for rank, (has_seal, found) in enumerate(
        ranks(call_with_bytes, 3, "ringfold", variables=variables).results()
    ):
        # On one host, or without a secret, nothing is added.
        assert has_seal is (variables is ON_NETWORK)
        assert found["all_gather"] == ["", "x", "xx"]
        assert found["gather"] == ([("from", other) for other in range(3)] if rank == 1 else None)
        assert found["broadcast"] == [1, "x"] and found["scatter"] == [("to", rank)]
        assert found.get("received") == (["sent", {}] if rank == 1 else None)
        assert found["messages"] == [10 * ((rank - 1) % 3) + index for index in range(3)]
        assert found["all_to_all"].tolist() == [
            10 * other + 2 * rank + index for other in range(3) for index in range(2)
        ]
        assert found["uneven"] == [[], [1.0], [1.0, 1.0]]


def refuse_some() -> Any:
    """Make calls with bytes that are refused on rank 1; then exchange objects on all ranks."""
    rank, texts = dist.get_rank(), []
    zeros = torch.zeros(6, dtype=torch.uint8)
    # Also the second of two calls that are made together.
    mistakes: list[Callable[[], object]] = [
        lambda: dist.all_gather_into_tensor(zeros[:5].clone(), zeros[:3]),
        lambda: dist.all_to_all_single(zeros[:4], zeros[:4].clone(), [3, 1], [1, 3]),
        lambda: dist.broadcast(zeros, 7),
        lambda: dist.send(zeros, 7),
        lambda: dist.distributed_c10d._get_default_group().allreduce_coalesced(
            [torch.zeros(2), torch.zeros(2, dtype=torch.float8_e5m2fnuz)]
        ),
    ]
    for call in mistakes if rank == 1 else []:
        with pytest.raises(Exception) as caught:
            call()
        texts.append(str(caught.value))
    found: list[Any] = [None] * 2
    dist.all_gather_object(found, "x" * rank)
    group = dist.distributed_c10d._get_default_group()
    return texts, found, group._get_sequence_number_for_group()


def test_a_refused_call_is_not_counted(ranks: Any) -> None:
    none, some = ranks(refuse_some, 2, "ringfold", variables=ON_NETWORK).results()
    assert none[1] == some[1] == ["", "x"] and none[2] == some[2]
    texts = some[0]
    # In the caller's numbers, without trailers.
    assert "sends itself 3 elements but expects 1 from itself" in texts[1]


class Loaded:
    """Counts its loads in this process."""

    def __reduce__(self) -> Any:
        return exec, (
            "import os; os.environ['LOADED'] = str(int(os.environ.get('LOADED', 0)) + 1)",
        )


def loaded() -> int:
    return int(os.environ.get("LOADED", 0))


def change(parts: list[torch.Tensor], _: list[torch.Tensor]) -> None:
    parts[2][5] ^= 1


def swap(parts: list[torch.Tensor], _: list[torch.Tensor]) -> None:
    kept = parts[1].clone()
    parts[1].copy_(parts[2])
    parts[2].copy_(kept)


def repeat(parts: list[torch.Tensor], earlier: list[torch.Tensor]) -> None:
    parts[1].copy_(earlier[1])


WAYS = {"change": change, "swap": swap, "repeat": repeat}


def attack(way: str) -> Any:
    """Change bytes on their way to rank 0, past the connections' own checksums.

    An attacker could forge those checksums.
    """
    earlier: list[torch.Tensor] = []
    finish = SealedCall.finish

    def finish_after_attack(call: SealedCall) -> None:
        parts = [check.part for check in call._checks]
        # Attacks the objects, not their sizes.
        if call.name == "all_gather" and parts[0].numel() > TRAILER_BYTES:
            if earlier:
                WAYS[way](parts, earlier)
            earlier[:] = [part.clone() for part in parts]
        finish(call)

    found: list[Any] = [None] * dist.get_world_size()
    if dist.get_rank() == 0:
        SealedCall.finish = finish_after_attack  # type: ignore[assignment, method-assign]
    dist.all_gather_object(found, Loaded())
    before = loaded()
    assert before == dist.get_world_size()
    try:
        dist.all_gather_object(found, Loaded())
        dist.barrier()
    except RingfoldError as error:
        return type(error), str(error), loaded() - before, getattr(error, "peer", None)
    return None


@pytest.mark.parametrize("way", WAYS)
def test_bytes_that_changed_on_their_way_are_not_loaded(ranks: Any, way: str) -> None:
    victim, *others = ranks(attack, 3, "ringfold", variables=ON_NETWORK, way=way).results()
    kind, text, later, peer = victim
    assert kind is CorruptError and later == 0 and "changed or replayed in transit" in text
    assert peer == (2 if way == "change" else 1)
    for kind, text, *_ in others:
        assert kind is AbortedError and "aborted by rank 0" in text and "changed" in text


def test_a_message_is_taken_once() -> None:
    class Communicator:
        rank, world_size = 0, 2
        reasons: list[str] = []

        def abort(self, reason: str) -> None:
            self.reasons.append(reason)

    communicator = Communicator()
    sender, receiver = (Seal(b"key", communicator) for _ in range(2))  # type: ignore[arg-type]
    part = torch.zeros(5 + TRAILER_BYTES, dtype=torch.uint8)
    sender.close(part, "message", 0, 7, sender.next_message(0, 7))
    receiver.check(part, "message", 0, 0, 7, None)
    for what in [
        ("message", 0, 0, 7),
        ("message", 1, 0, 7),
        ("message", 0, 0, 8),
        ("gather", 0, 0, 7),
    ]:
        with pytest.raises(CorruptError):
            receiver.check(part, *what, None)
    assert len(communicator.reasons) == 4


def store_at(port: int, rank: int) -> Any:
    timeout = datetime.timedelta(seconds=20)
    return dist.TCPStore(
        "127.0.0.1", port, None, rank == 0, timeout=timeout, wait_for_workers=False
    )


def read_and_try_to_join(port: int) -> Any:
    """Try, as rank 1, to join with everything in the store; then join with the secret.

    The attacker has access to the store, but not the secret.
    """
    rank = int(os.environ["RANK"])
    store = store_at(port, rank)
    if rank == 0:
        communicator = bootstrap.connect(store, 0, 2, datetime.timedelta(seconds=30)).communicator
        communicator.close()
        return None
    secret = os.environ.pop("RINGFOLD_SECRET")
    # A rank's entries let rank 0 continue.
    entries = dist.PrefixStore("2", store)
    entries.wait(["first"])
    first = entries.get("first").decode()
    entries = dist.PrefixStore(first, entries)
    entries.set("here/1", f"{_native.host_id()} {'0' * 32}")
    entries.wait(["meet"])
    meet = bootstrap._Meet(*entries.get("meet").decode().split(" "))
    tried = [
        word
        for text in [meet.numbers, first, entries.get("here/0").decode()]
        for word in (text, *text.split(","), *text.split())
        if word
    ]
    refused = 0
    for word in tried:
        try:
            _native.Communicator.connect(
                rank=1, world_size=2, address=meet.address, secret=word, connect_timeout=5
            )
        except BootstrapError:
            refused += 1
    # The rank itself joins after the attacker, with the secret.
    os.environ["RINGFOLD_SECRET"] = secret
    joined, _ = bootstrap._secret_and_key(meet)
    _native.Communicator.connect(rank=1, world_size=2, address=meet.address, secret=joined).close()
    return len(tried), refused


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def test_who_reads_the_store_cannot_join_without_the_secret(ranks: Any) -> None:
    outcome = ranks(
        read_and_try_to_join, 2, None, variables={"RINGFOLD_SECRET": SECRET}, port=free_port()
    )
    outcome.result(0)
    tried, refused = outcome.result(1)
    assert tried == refused > 3


def join_with_half_a_secret(port: int, owner: int) -> str:
    rank = int(os.environ["RANK"])
    if rank == owner:
        os.environ["RINGFOLD_SECRET"] = SECRET
    with pytest.raises(BootstrapError) as caught:
        bootstrap.connect(store_at(port, rank), rank, 2, datetime.timedelta(seconds=2))
    return str(caught.value)


@pytest.mark.parametrize("owner", [0, 1])
def test_ranks_without_the_secret_of_others_are_told(ranks: Any, owner: int) -> None:
    outcome = ranks(join_with_half_a_secret, 2, None, port=free_port(), owner=owner)
    expected = (
        "rank 0 has a job secret, but this rank has none"
        if owner == 0
        else "this rank has a job secret"
    )
    assert expected in outcome.result(1)
