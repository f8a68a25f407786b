"""Old names, which work until version 0.2, with a warning."""

import importlib
from typing import Any

import pytest

import ringfold
from ringfold import _renamed


@pytest.mark.parametrize("module", ["ringfold", "ringfold.errors"])
def test_old_names_of_errors_are_the_new_classes(module: str) -> None:
    names = importlib.import_module(module)
    for old, new in _renamed.ERRORS.items():
        with pytest.warns(DeprecationWarning, match=rf"`{module}.{old}` is now `{module}.{new}`"):
            assert getattr(names, old) is getattr(ringfold, new)
    with pytest.raises(AttributeError, match="no attribute `Terror`") as unknown:
        names.Terror
    assert (unknown.value.name, unknown.value.obj) == ("Terror", names)


def test_the_old_name_of_torchs_error_is_the_new_class() -> None:
    pytest.importorskip("torch")
    names = importlib.import_module("ringfold.torch")
    with pytest.warns(DeprecationWarning, match="WaitTimeoutError") as caught:
        assert names.WaitTimeout is names.WaitTimeoutError
    assert caught[0].filename == __file__


def test_settings_are_still_arguments_of_init() -> None:
    with pytest.warns(DeprecationWarning, match=r"use tuning=\{'max_channels': ...\}") as caught:
        ringfold.init(0, 1, max_channels=2).close()
    assert caught[0].filename == __file__
    with pytest.raises(ringfold.InvalidArgumentError), pytest.warns(DeprecationWarning):
        ringfold.init(0, 1, protocol="fast")
    unknown = {"ranks": 2}
    with pytest.raises(TypeError, match="unexpected keyword argument 'ranks'"):
        ringfold.init(**unknown)  # type: ignore[arg-type]


def test_a_setting_given_twice_is_an_error() -> None:
    with (
        pytest.raises(ringfold.InvalidArgumentError, match="`max_channels` is given twice"),
        pytest.warns(DeprecationWarning),
    ):
        ringfold.init(0, 1, max_channels=1, tuning={"max_channels": 2})


@pytest.mark.parametrize(
    "settings", [{"tuning": {"deterministic": True}}, {"deterministic": True}]
)
def test_the_old_name_of_reproducible_works(settings: Any) -> None:
    with pytest.warns(DeprecationWarning, match="is now `reproducible`") as caught:
        ringfold.init(0, 1, **settings).close()
    assert caught[0].filename == __file__


def test_the_old_name_of_reproducible_has_its_effect() -> None:
    tuning: Any = {"straggler": "tail", "deterministic": True}
    with (
        pytest.raises(ringfold.InvalidArgumentError, match="reproducible results"),
        pytest.warns(DeprecationWarning),
    ):
        ringfold.init(0, 1, tuning=tuning)
