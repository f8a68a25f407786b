"""The test device itself computes the same as the CPU, but late, and reveals missing ordering."""

from typing import Any

import softtorch
import torch

ELEMENTS = 1000


def train(device: str) -> Any:
    """Return the parameters after some steps with momentum."""
    torch.manual_seed(7)
    layers = [torch.nn.Linear(9, 33), torch.nn.ReLU(), torch.nn.Linear(33, 5)]
    model = torch.nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(3):
        inputs, labels = torch.randn(8, 9).to(device), torch.randint(5, (8,)).to(device)
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()]


def computes() -> Any:
    """Return pairs of tensors that must be equal, by the operation that made them."""
    torch.set_num_threads(1)
    given = torch.arange(24.0).reshape(2, 3, 4)
    there = given.to("soft")
    there[1, :, ::2] = 7
    given[1, :, ::2] = 7
    tripled = torch._foreach_mul(list(there), 3), torch._foreach_mul(list(given), 3)
    pairs = {
        "training": zip(train("soft"), train("cpu"), strict=True),
        "strides": [(there.transpose(0, 2)[1:], given.transpose(0, 2)[1:])],
        "types": [(there.to(torch.bfloat16), given.to(torch.bfloat16))],
        "sizes that depend on values": [(torch.nonzero(there > 5), torch.nonzero(given > 5))],
        "lists": zip(*tripled, strict=True),
        "a result that grows": [(torch.add(there, 1, out=there.new_empty(0)), given + 1)],
    }
    return {what: [(one.cpu(), other) for one, other in each] for what, each in pairs.items()}


def test_it_computes_what_the_cpu_does(ranks: Any, soft: Any) -> None:
    """Results are identical bit for bit."""
    for what, pairs in ranks(computes, 1, None, variables=soft).result(0).items():
        assert pairs and all(torch.equal(*pair) for pair in pairs), what


def misses_a_join() -> Any:
    side, main = torch.Stream("soft"), torch.accelerator.current_stream()
    total = torch.zeros(ELEMENTS, device="soft")
    side.wait_stream(main)
    with softtorch.held(side):
        with side:
            total.add_(1)
            fresh = total * 2
        early = total.cpu(), fresh.cpu()
    main.wait_stream(side)
    return early, (total.cpu(), fresh.cpu())


def test_a_missing_join_is_seen(ranks: Any, soft: Any) -> None:
    """Without a join, a reader sees an old value, or NaN in new memory."""
    early, late = ranks(misses_a_join, 1, None, variables=soft).result(0)
    assert (early[0] == 0).all() and early[1].isnan().all()
    assert (late[0] == 1).all() and (late[1] == 2).all()


def frees(is_recorded: bool) -> Any:
    side, main = torch.Stream("soft"), torch.accelerator.current_stream()
    given = torch.ones(ELEMENTS, device="soft")
    side.wait_stream(main)
    with softtorch.held(side):
        with side:
            doubled = given * 2
        if is_recorded:
            given.record_stream(side)
        del given
        again = torch.empty(ELEMENTS, device="soft")
        if not is_recorded:
            main.synchronize()
    main.wait_stream(side)
    assert again.isnan().all()
    return doubled.cpu()


def test_memory_that_is_freed_too_early_is_seen(ranks: Any, soft: Any) -> None:
    """Reused memory is NaN for a stream that still uses it, unless recorded on that stream."""
    early = ranks(frees, 1, None, variables=soft, is_recorded=False).result(0)
    assert early.isnan().all()
    kept = ranks(frees, 1, None, variables=soft, is_recorded=True).result(0)
    assert (kept == 2).all()


def copies_without_waiting() -> Any:
    main = torch.accelerator.current_stream()
    given = torch.ones(ELEMENTS).pin_memory()
    target = torch.zeros(ELEMENTS).pin_memory()
    with softtorch.held(main):
        there = given.to("soft", non_blocking=True)
        target.copy_(there * 2, non_blocking=True)
        given.fill_(3)
        is_done = main.query()
        early = target.clone()
    main.synchronize()
    return is_done, early, target.clone()


def test_pinned_memory_is_copied_late(ranks: Any, soft: Any) -> None:
    """Copies between pinned memory and the device return at once, and read the source later."""
    is_done, early, late = ranks(copies_without_waiting, 1, None, variables=soft).result(0)
    assert not is_done
    assert (early == 0).all() and (late == 6).all()
