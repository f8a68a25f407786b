"""Settings of the tuner and of the transports, by name."""

import os
import warnings
from collections.abc import Mapping
from typing import Any, TypedDict

from ringfold.errors import InvalidArgumentError


class Tuning(TypedDict, total=False):
    """The keys of `tuning` in `ringfold.init`; all are optional, and also exist as variables.

    Values with * must be the same on all ranks.
    """

    max_channels: int
    """The maximum number of independent pipelines of a collective over messages; on TCP, of
    connections per pair of ranks. *"""
    protocol: str
    """`ll`, `simple` or `zero_copy`, for every call that supports it; see docs/guides/tuning.md."""
    straggler: str
    """`off`, `next2` or `tail`: whether large all_reduce and reduce_scatter calls bypass a slow
    rank; see docs/guides/stragglers.md. *"""
    reproducible: bool
    """Whether reductions have the same bits for any size, algorithm, transport and division into
    hosts; see docs/guides/reproducible.md. If any rank sets it, it applies to all."""
    tuner_config: str | os.PathLike[str]
    """A file of rules, instead of RINGFOLD_TUNER_CONFIG. Rank 0's value applies."""
    tuner_plugin: str
    """A shared library with NCCL's tuner interface. *"""
    sockets: int
    """The number of TCP sockets of each channel between two ranks, 1 to 64. *"""


def checked(tuning: Mapping[str, Any] | None, old: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `tuning`, and those of `old`, the deprecated keyword arguments of `init`.

    A setting that is in both is an error, like an argument that is given twice.
    """
    known = Tuning.__annotations__
    tuning, old = _renamed(tuning), _renamed(old)
    if tuning is not None and not isinstance(tuning, Mapping):
        raise TypeError(f"`tuning` is a mapping of names to settings, not {type(tuning).__name__}")
    for name in old:
        if name not in known:
            raise TypeError(f"init() got an unexpected keyword argument '{name}'")
        warnings.warn(
            f"the argument `{name}` of `ringfold.init` is now a key of `tuning`: use "
            f"tuning={{{name!r}: ...}}; the argument works until version 0.2",
            DeprecationWarning,
            stacklevel=3,
        )
    for name in tuning or ():
        if name not in known:
            raise InvalidArgumentError(f"unknown key `{name}` in `tuning`; {_hint(name)}")
        if name in old:
            raise InvalidArgumentError(f"`{name}` is given twice: as an argument and in `tuning`")
    return {**old, **(tuning or {})}


def _renamed(settings: Any) -> Any:
    """The settings with the present name of one that has been renamed."""
    if not isinstance(settings, Mapping) or "deterministic" not in settings:
        return settings
    warnings.warn(
        "the setting `deterministic` of `ringfold.init` is now `reproducible`; the old name works "
        "until version 0.2",
        DeprecationWarning,
        stacklevel=4,
    )
    now = {"deterministic": "reproducible"}
    return {now.get(name, name): value for name, value in settings.items()}


def _hint(name: object) -> str:
    from difflib import get_close_matches

    near = get_close_matches(str(name), Tuning.__annotations__, 1)
    return f"did you mean `{near[0]}`?" if near else f"use {', '.join(Tuning.__annotations__)}"
