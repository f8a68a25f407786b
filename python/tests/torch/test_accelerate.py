"""`support_accelerate` replaces a method of Accelerate.

A stand-in has that method here; `python/tests/clients` runs Accelerate itself.
"""

import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from ringfold.errors import UnsupportedError
from ringfold.torch import support_accelerate


class PartialState:
    """The part of Accelerate 1.15 that chooses the backend of CPU ranks."""

    def __init__(self, cpu: bool = False, **options: Any) -> None:
        asked_for = options.pop("backend", None)
        self.backend, self.distributed_type = self._prepare_backend(cpu, False, asked_for)
        if asked_for is not None and self.backend != asked_for:
            raise ValueError(f"Your assigned backend {asked_for} is not available")

    def _prepare_backend(
        self, cpu: bool = False, sagemaker_dp: bool = False, backend: str | None = None
    ) -> tuple[str | None, str]:
        """Return the name of the backend, and the kind of job."""
        if int(os.environ.get("LOCAL_RANK", -1)) == -1:
            return None, "NO"
        return ("mpi" if backend == "mpi" else "gloo"), "MULTI_CPU"


@pytest.fixture
def accelerate(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Any]]:
    """The class of a fresh stand-in for the package, in a process that is a rank."""
    package, state = ModuleType("accelerate"), ModuleType("accelerate.state")
    copy = type("PartialState", (), dict(vars(PartialState)))
    state.PartialState = package.PartialState = copy  # type: ignore[attr-defined]
    package.state = state  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "accelerate", package)
    monkeypatch.setitem(sys.modules, "accelerate.state", state)
    monkeypatch.setenv("LOCAL_RANK", "0")
    yield copy


def test_accelerate_keeps_the_backend_that_it_refused(accelerate: type[Any]) -> None:
    with pytest.raises(ValueError, match="ringfold is not available"):
        accelerate(cpu=True, backend="ringfold")
    support_accelerate()
    state = accelerate(cpu=True, backend="ringfold")
    assert (state.backend, state.distributed_type) == ("ringfold", "MULTI_CPU")


def test_other_backends_are_chosen_as_before(accelerate: type[Any]) -> None:
    support_accelerate()
    assert [accelerate(True, backend=name).backend for name in ("gloo", "mpi")] == ["gloo", "mpi"]
    assert accelerate(True).backend == "gloo"
    with pytest.raises(ValueError, match="ucc is not available"):
        accelerate(True, backend="ucc")


def test_the_name_may_come_in_any_place(accelerate: type[Any]) -> None:
    support_accelerate()
    prepare = accelerate(True)._prepare_backend
    kept = ("ringfold", "MULTI_CPU")
    assert prepare(True, False, "ringfold") == prepare(backend="ringfold", cpu=True) == kept


def test_repeated_support_replaces_the_method_once(accelerate: type[Any]) -> None:
    support_accelerate()
    method = accelerate._prepare_backend
    support_accelerate()
    assert accelerate._prepare_backend is method
    assert method.__name__ == "_prepare_backend" and method.__doc__


def test_an_accelerate_that_chooses_otherwise_is_refused(accelerate: type[Any]) -> None:
    def prepare(self: Any, cpu: bool = False) -> tuple[str, str]:
        return "gloo", "MULTI_CPU"

    accelerate._prepare_backend = prepare
    with pytest.raises(UnsupportedError, match="init_process_group"):
        support_accelerate()
    assert accelerate._prepare_backend is prepare
    del accelerate._prepare_backend
    with pytest.raises(UnsupportedError, match="init_process_group"):
        support_accelerate()


def test_a_missing_accelerate_is_an_import_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "accelerate", None)
    monkeypatch.setitem(sys.modules, "accelerate.state", None)
    with pytest.raises(ImportError):
        support_accelerate()
