"""Futures of calls: callbacks may make calls, wait for other futures, and raise."""

import sys
from pathlib import Path
from typing import Any

import launching
import pytest
import torch
import torch.distributed as dist
from test_training import check, momentum, network, take_steps, weights
from torch.distributed.algorithms.ddp_comm_hooks import (
    default_hooks,
    post_localSGD_hook,
    powerSGD_hook,
)
from torch.nn.parallel import DistributedDataParallel

DEPTH = 5
WATCHDOG_S = 300.0


def future(value: float, group: Any = None) -> Any:
    return dist.all_reduce(torch.full((3,), value), group=group, async_op=True).get_future()


def nest(depth: int, group: Any = None) -> Any:
    """Return a future whose callback waits for another such future, `depth` deep.

    Its value is the number of ranks to the power of `depth`.
    """

    def callback(done: Any) -> float:
        value = float(done.value()[0][0])
        return value * nest(depth - 1, group).wait() if depth > 1 else value

    return future(1.0, group).then(callback)


def wait_within_callbacks() -> Any:
    found: dict[str, Any] = {"nested": nest(DEPTH).wait()}
    # The awaited future was made first, but mostly completes after the waiting one; a completed
    # future calls back at once.
    behind = set()
    for _ in range(20):
        first, second = future(1.0), future(2.0)
        behind.add(first.then(lambda _, second=second: float(second.wait()[0][0])).wait())
    (found["behind"],) = behind
    chain = future(1.0)
    for _ in range(DEPTH):
        chain = chain.then(lambda done: [done.wait()[0] + future(1.0).wait()[0]])
    found["chain"] = float(chain.wait()[0][0])
    groups = [dist.new_group() for _ in range(3)]
    found["groups"] = [each.wait() for each in [nest(3, group) for group in groups]]
    return found


@pytest.mark.parametrize("count", [2, 3])
def test_callbacks_may_wait_for_other_futures(ranks: Any, count: int) -> None:
    for found in ranks(wait_within_callbacks, count, "ringfold").results():
        assert found == {
            "nested": count**DEPTH,
            "behind": 2 * count,
            "chain": count * (1 + DEPTH),
            "groups": [count**3] * 3,
        }


def raise_within_callbacks() -> Any:
    def fail(_: Any) -> None:
        raise KeyError("what this test is about")

    def wait_for_a_failure(_: Any) -> None:
        future(1.0).then(fail).wait()

    failed = [future(1.0).then(fail), future(1.0).then(wait_for_a_failure)]
    after = future(1.0)
    told = []
    for each in failed:
        with pytest.raises(Exception, match="what this test is about") as caught:
            each.wait()
        told.append(caught.type.__name__)
    return told, float(after.wait()[0][0])


def test_callbacks_may_raise(ranks: Any) -> None:
    for told, after in ranks(raise_within_callbacks, 2, "ringfold").results():
        assert len(told) == 2 and after == 2


def die_within_a_callback() -> Any:
    if dist.get_rank() == 1:
        future(1.0).wait()
        raise RuntimeError("rank 1 gives up")
    return nest(2).wait()


def test_a_callback_that_waits_for_a_dead_rank_gets_an_error(ranks: Any) -> None:
    outcome = ranks(die_within_a_callback, 2, "ringfold")
    assert "rank 1" in str(outcome.error(0)), outcome.logs()


END_BEFORE_A_CALLBACK = """
import threading, time
import torch, torch.distributed as dist

dist.init_process_group("ringfold", store=dist.HashStore(), rank=0, world_size=1)
group, x = dist.group.WORLD, torch.zeros(1)


def finish(done):
    threading.main_thread().join()
    time.sleep(1.2)
    dist.all_reduce(x)
    print(f"finished with {x.item()}", flush=True)


group.recv([x], 0).get_future().then(finish)
group.send([torch.ones(1)], 0)
"""


def test_the_exit_waits_for_callbacks(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(END_BEFORE_A_CALLBACK)
    status, output = launching.finish([sys.executable, str(program)], WATCHDOG_S)
    assert status == 0 and "finished with 1.0" in output, (status, output)


def train(hook: str, options: dict[str, Any]) -> Any:
    from ringfold.torch import hooks

    model = DistributedDataParallel(network(), **options)
    if hook == "powerSGD_hook":
        state = powerSGD_hook.PowerSGDState(
            None, 1, start_powerSGD_iter=2, min_compression_rate=0.5
        )
        chosen = powerSGD_hook.powerSGD_hook
        model.register_comm_hook(state, hooks.in_order(chosen) if options else chosen)
    elif hook == "post_localSGD_hook":
        state = post_localSGD_hook.PostLocalSGDState(None, dist.new_group(), start_localSGD_iter=2)
        model.register_comm_hook(state, post_localSGD_hook.post_localSGD_hook)
    else:
        model.register_comm_hook(None, getattr(default_hooks, hook))
    take_steps(model, momentum(model), steps=6)
    return weights(model)


def train_with_all_hooks(many: bool) -> Any:
    options = {"bucket_cap_mb": 0.0005} if many else {}
    names = ["powerSGD_hook", "post_localSGD_hook", "fp16_compress_hook", "allreduce_hook"]
    return {name: train(name, options) for name in names}


@pytest.mark.parametrize("many", [False, True])
def test_hooks_of_torch_train_as_on_gloo(ranks: Any, many: bool) -> None:
    together = ranks(train_with_all_hooks, 2, "ringfold", many=many).results()
    reference = ranks(train_with_all_hooks, 2, "gloo", many=many).result(0)
    for name, expected in reference.items():
        check([found[name] for found in together], [expected])
