"""Links between the repository's documents, and mentions of documents in code, have a target.

The site's own check (`docs/build.sh`) covers only the pages of the site. This check covers all
documents, needs nothing installed, and names the line to change.
"""

import posixpath
import re
from collections.abc import Iterator
from functools import cache

from test_tidy import ROOT, text, tracked

LINK = re.compile(r"\]\(([^()\s]+)\)")
MENTION = re.compile(r"(?<![\w/.-])(?:docs|bench)/[\w./-]+\.md(?:#[\w-]+)?")
CODE = (".rs", ".py", ".pyi", ".toml", ".sh", ".c", ".h", ".md", ".yml")


def prose(name: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered lines of a document, except those in code blocks."""
    in_block = False
    for number, line in enumerate(text(name).splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_block = not in_block
        elif not in_block:
            yield number, line


@cache
def anchors(name: str) -> set[str]:
    """Return the anchors of a document's headings, as on repository hosts and on the site."""
    found: set[str] = set()
    for _, line in prose(name):
        if heading := re.match(r"#+ +(.*?)\s*#*$", line):
            title = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).strip().lower()
            anchor = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
            count = sum(1 for other in found if re.fullmatch(rf"{re.escape(anchor)}(-\d+)?", other))
            found.add(f"{anchor}-{count}" if count else anchor)
        found.update(re.findall(r'<a (?:id|name)="([^"]+)"', line))
    return found


def problem(target: str) -> str | None:
    """Return the problem of a path in the repository, which may have an anchor, or None."""
    path, _, anchor = target.partition("#")
    if not (ROOT / path).exists():
        return "no such file"
    if anchor and path.endswith(".md") and anchor not in anchors(path):
        return "no such heading"
    return None


def test_links_lead_to_files_and_headings() -> None:
    """Every relative link in a document leads to a file, and its anchor to a heading there."""
    wrong = []
    for name in tracked(".md"):
        for number, line in prose(name):
            for target in LINK.findall(re.sub(r"`[^`]*`", "", line)):
                # rustdoc's pages exist only on the site, whose build checks links to them.
                if "://" in target or target.startswith("mailto:") or "api/rust/" in target:
                    continue
                path, mark, anchor = target.partition("#")
                path = posixpath.normpath(posixpath.join(posixpath.dirname(name), path))
                there = name if target.startswith("#") else path
                if why := problem(there + mark + anchor):
                    wrong.append(f"{name}:{number}: {target}: {why}")
    assert not wrong, "\n".join(wrong)


def test_documents_that_are_mentioned_exist() -> None:
    """Every document that comments, messages and other documents mention exists."""
    wrong = [
        f"{name}:{number}: {target}: {why}"
        for name in tracked(*CODE)
        for number, line in enumerate(text(name).splitlines(), 1)
        for target in MENTION.findall(line)
        if (why := problem(target))
    ]
    assert not wrong, "\n".join(wrong)


def test_every_guide_is_listed() -> None:
    """`docs/guides/README.md` links to all guides."""
    listed = set(LINK.findall(text("docs/guides/README.md")))
    guides = {posixpath.basename(name) for name in tracked(".md") if "docs/guides/" in name}
    assert guides - listed == {"README.md"}
