"""Checks the built site: every link leads to a page and an anchor on it, and nothing is fetched.

    python docs/site/check.py SITE

Links to other sites are allowed, but not followed. Scripts, styles, fonts and images must be the
site's own. Pages of rustdoc are valid targets, but are not checked themselves: `cargo doc` does
that.
"""

import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

RUSTDOC = "api/rust"
_FETCHED = {"script": "src", "img": "src", "source": "srcset", "iframe": "src", "link": "href"}
_NOT_FETCHED = {"canonical", "next", "prev", "alternate"}
"""The `rel` values of `<link>` elements that only name a page."""


class Page(HTMLParser):
    """A page's anchors, its links, and the resources that a browser fetches to show it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Records the anchors, links and resources of an element."""
        values = {name: value or "" for name, value in attrs}
        self.anchors.update(values[name] for name in ("id", "name") if name in values)
        if tag == "a" and "href" in values:
            self.links.append(values["href"])
        elif tag in _FETCHED and _FETCHED[tag] in values:
            if not set(values.get("rel", "").split()) & _NOT_FETCHED:
                self.fetched.append(values[_FETCHED[tag]])


@cache
def page(path: Path) -> Page:
    """Returns the page at `path`."""
    return Page(path.read_text(encoding="utf-8"))


def problem(site: Path, here: Path, target: str) -> str | None:
    """Returns the problem of a link or resource on the page `here`, or None."""
    parts = urlsplit(target)
    if parts.scheme or parts.netloc:
        return None
    there = here
    if parts.path:
        base = site if parts.path.startswith("/") else here.parent
        there = (base / unquote(parts.path).lstrip("/")).resolve()
        if there.is_dir():
            there /= "index.html"
    if not there.is_file():
        return "no such file"
    anchor = unquote(parts.fragment)
    if anchor and there.suffix == ".html" and anchor not in page(there).anchors:
        # rustdoc's script makes the line numbers of listings.
        return None if RUSTDOC in there.as_posix() else "no such anchor"
    return None


def main() -> int:
    """Prints all problems, and returns the exit status."""
    site = Path(sys.argv[1]).resolve()
    wrong: list[str] = []
    pages = [path for path in sorted(site.rglob("*.html")) if RUSTDOC not in path.as_posix()]
    for path in pages:
        name = path.relative_to(site)
        for target in page(path).links + page(path).fetched:
            if why := problem(site, path, target):
                wrong.append(f"{name}: {target}: {why}")
        for target in page(path).fetched:
            if urlsplit(target).netloc:
                wrong.append(f"{name}: {target}: fetched from another site")
    for style in sorted(site.rglob("*.css")):
        if RUSTDOC not in style.as_posix() and "url(http" in style.read_text(encoding="utf-8"):
            wrong.append(f"{style.relative_to(site)}: fetches from another site")
    print("\n".join(wrong) or f"{len(pages)} pages: all links lead somewhere")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
