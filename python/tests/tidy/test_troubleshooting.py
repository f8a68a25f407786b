"""docs/guides/troubleshooting.md has error texts that exist, and has every error of joining."""

import re
from functools import cache

from test_tidy import text, tracked

PAGE = "docs/guides/troubleshooting.md"
PLACES = re.compile(r"…|failed:|timed out|\[\.\.\.\]|\b[NMKAB]\b|ValueError|KeyboardInterrupt")
"""Placeholders in the page's error texts."""

LETTERS_MIN = 10
"""Shorter pieces of a text are not significant."""

NOT_OURS = (
    "Address already in use",
    "Your assigned backend ringfold is not available",
    "monitored_barrier is only implemented for GLOO backend",
)
"""Texts of the system and of torch."""


BOOTSTRAP = re.compile(r'Error::Bootstrap\(\s*(?:format!\(\s*)?"((?:[^"\\]|\\.)*)"')
REFUSALS = "crates/ringfold/src/control/refusal.rs"
"""The file whose `Display` has the reasons for a refused connection."""


@cache
def keys() -> list[str]:
    """Return the texts in the first columns of the page's tables."""
    rows = [line.split(" | ")[0] for line in text(PAGE).splitlines() if line.startswith("| `")]
    return [key for row in rows for key in re.findall(r"`([^`]+)`", row)]


def joined(source: str) -> str:
    """Join the texts of a source that are split over several lines."""
    return re.sub(r'\\\n\s*|"\n\s*f?"', "", source)


def bootstrap_texts() -> list[str]:
    """Return the texts of errors while ranks join, with their placeholders."""
    names = [name for name in tracked(".rs") if name.startswith("crates/ringfold/src/")]
    found = [each for name in names for each in BOOTSTRAP.findall(joined(text(name)))]
    shown = joined(text(REFUSALS)).partition("Display for Refusal")[2]
    return found + re.findall(r'"((?:[^"\\]|\\.)*)"', shown)


@cache
def sources() -> str:
    """Return the product's sources, with texts that are split over lines joined."""
    names = [name for name in tracked(".rs", ".py") if name.startswith(("crates/", "python/ring"))]
    return joined("\n".join(text(name) for name in names))


def test_error_texts_exist() -> None:
    """Every text in the first column is in the source, piece by piece."""
    assert len(keys()) > 20
    missing = [
        piece
        for key in keys()
        if not key.startswith(NOT_OURS)
        for piece in map(str.strip, PLACES.split(key))
        if len(piece) >= LETTERS_MIN and piece.strip("(): ") not in sources()
    ]
    assert not missing, f"{PAGE}: texts that no source has: {missing}"


def test_errors_while_joining_are_on_the_page() -> None:
    """The longest piece of each text, up to its remedy, is in one of the page's keys."""
    texts = bootstrap_texts()
    assert len(texts) > 20
    pieces = [max(re.split(r"\{[^}]*\}", each.split(";")[0]), key=len) for each in texts]
    known = " ".join(keys())
    missing = [
        piece
        for piece in (piece.strip("(): ") for piece in pieces)
        if len(piece) >= LETTERS_MIN and piece not in known
    ]
    assert not missing, f"{PAGE} lacks {missing}"


def test_deaths_that_documents_show_are_those_of_the_sources() -> None:
    """Every example of a failed rank has a reason that ringfold reports."""
    found = [
        reason
        for name in tracked(".md")
        if name.startswith("docs/")
        for reason in re.findall(r"rank \d failed: ([^(`]+) \(in", " ".join(text(name).split()))
    ]
    assert found
    missing = [reason for reason in found if reason not in sources()]
    assert not missing, f"reasons that no source has: {missing}"
