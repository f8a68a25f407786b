"""The texts by which docs/guides/troubleshooting.md is keyed are those that users see."""

import re
from functools import cache

from test_tidy import text, tracked

PAGE = "docs/guides/troubleshooting.md"
PLACES = re.compile(r"…|failed:|\[\.\.\.\]|\b[NMKAB]\b|ValueError|KeyboardInterrupt")
"""What stands for something else in each error."""

LETTERS_MIN = 10
"""Shorter pieces of a text say little."""

NOT_OURS = (
    "Address already in use",
    "Your assigned backend ringfold is not available",
    "monitored_barrier is only implemented for GLOO backend",
)
"""Texts of the system and of torch."""


@cache
def sources() -> str:
    """All texts of the product, with those that are broken over lines in one piece."""
    names = [name for name in tracked(".rs", ".py") if name.startswith(("crates/", "python/ring"))]
    joined = "\n".join(text(name) for name in names)
    return re.sub(r'\\\n\s*|"\n\s*f?"', "", joined)


def test_error_texts_exist() -> None:
    """Every text in the first column stands in the source, piece by piece."""
    rows = [line.split(" | ")[0] for line in text(PAGE).splitlines() if line.startswith("| `")]
    keys = [key for row in rows for key in re.findall(r"`([^`]+)`", row)]
    assert len(keys) > 20
    missing = [
        piece
        for key in keys
        if not key.startswith(NOT_OURS)
        for piece in map(str.strip, PLACES.split(key))
        if len(piece) >= LETTERS_MIN and piece.strip("(): ") not in sources()
    ]
    assert not missing, f"{PAGE}: texts that no source has: {missing}"
