"""Reduces a failing list to a short one, by leaving out parts (Zeller's ddmin)."""

from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def shortest(
    items: Sequence[Item], fails: Callable[[list[Item]], bool], tries_max: int
) -> list[Item]:
    """Return a sublist that still fails, without any item that could be left out.

    After `tries_max` tries, the result may have such items.
    """
    left = list(items)
    parts = 2
    tries = 0
    while len(left) > 1:
        size = -(-len(left) // parts)
        for begin in range(0, len(left), size):
            if tries == tries_max:
                return left
            tries += 1
            without = left[:begin] + left[begin + size :]
            if without and fails(without):
                left, parts = without, max(parts - 1, 2)
                break
        else:
            if size == 1:
                break
            parts = min(2 * parts, len(left))
    return left
