"""Extensions of the site beyond plain MkDocs.

Documents are written for the repository: their links are paths in it, and work on any repository
host. The site has the documents of `docs`, those of `OUTSIDE`, and a page for each program that a
document links to. A link between them is rewritten for the site; if its text was a file name, it
becomes the page's title. A link to any other file of the repository becomes plain text, because the
site does not have that file. The home page begins with the first part of README.md.

MkDocs calls the `on_` functions.
"""

import os
import posixpath
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[2]

OUTSIDE = {
    "ARCHITECTURE.md": "explanation/architecture.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "bench/README.md": "project/benchmarks.md",
    "bench/results/README.md": "explanation/measurements.md",
}
"""Documents outside `docs` that are also on the site, with their paths there."""

PARTS = {"Guides": "guides", "Reference": "reference", "Explanation": "explanation"}
"""Folder of `docs` whose pages belong to each part of the site."""

LANGUAGES = {
    ".c": "c",
    ".h": "c",
    ".py": "python",
    ".rs": "rust",
    ".sh": "bash",
    ".toml": "toml",
    ".yaml": "yaml",
}
"""Endings of files that get a page, with the language of their text."""

PROGRAMS = "programs"
"""Folder of the site with the pages of programs."""

FRONT, FRONT_END = "<!-- the front of README.md -->", "\n## Documentation\n"
"""The mark on the home page that README.md's first part replaces, and the heading of README.md that
ends this part."""

_FENCE = re.compile(r"^\s*(```|~~~)")
_LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^()\s]+)\)")
_PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="([^"]+)">'
    r'\s*<img alt="([^"]+)"\s*src="([^"]+)">\s*</picture>'
)
_PATH = re.compile(r'(\]\(|src="|srcset=")(?!\w+:|#)([^)"\s]+)')
_ITEM = re.compile(r"([*-]|\d+\.) ")


def repository_path(page: str) -> str:
    """Returns the repository path of a page of the site."""
    for outside, there in OUTSIDE.items():
        if there == page:
            return outside
    return f"docs/{page}"


def site_path(path: str) -> str | None:
    """Returns the site path of a file of the repository; None if the site does not have it."""
    if path in OUTSIDE:
        return OUTSIDE[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if posixpath.splitext(path)[1] in LANGUAGES and (ROOT / path).is_file():
        return f"{PROGRAMS}/{path}.md"
    return None


@cache
def title(path: str) -> str | None:
    """Returns the first heading of a document."""
    for line in (ROOT / path).read_text(encoding="utf-8").splitlines():
        if line.startswith("# "):
            return line.removeprefix("# ")
    return None


def front() -> str:
    """Returns the first part of README.md without its title, with paths relative to `docs`."""
    _, _, text = (ROOT / "README.md").read_text(encoding="utf-8").partition("\n")
    text, end, _ = text.partition(FRONT_END)
    if not end:
        raise ValueError(f"README.md has no heading {FRONT_END.strip()}")
    return _PATH.sub(lambda match: match[1] + posixpath.relpath(match[2], "docs"), text)


def _picture(match: re.Match[str]) -> str:
    """Returns a picture that follows the site's dark mode, and stacks on narrow screens."""
    dark, about, light = match.groups()
    pictures = (
        f'<picture><source media="(max-width: 56em)" srcset="{narrow}">'
        f'<img alt="{about}" src="{wide}#only-{theme}"></picture>'
        for wide, theme in ((light, "light"), (dark, "dark"))
        for narrow in (wide.replace(f"-{theme}.svg", f"-narrow-{theme}.svg"),)
    )
    return "\n".join(pictures)


def _link(match: re.Match[str], page: str) -> str:
    text, target = match.groups()
    if "://" in target or target.startswith(("#", "mailto:", "/")):
        return match.group()
    path, hash_mark, anchor = target.partition("#")
    folder = posixpath.dirname(repository_path(page))
    path = posixpath.normpath(posixpath.join(folder, path))
    there = site_path(path)
    if there is None:
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"{page}: a link leads to {path}, which does not exist")
        return text[text.index("[") + 1 : -1]
    if text == f"[{posixpath.basename(path)}]" and path.endswith(".md"):
        text = f"[{title(path) or path}]"
    relative = posixpath.relpath(there, posixpath.dirname(page) or ".")
    return f"{text}({relative}{hash_mark}{anchor})"


def for_site(markdown: str, page: str) -> str:
    """Converts a document of the repository to a page of the site."""
    lines: list[str] = []
    in_fence = False
    before = ""
    prose: list[str] = []

    def flush() -> None:
        # A link may be split over lines.
        lines.append(_LINK.sub(lambda match: _link(match, page), "\n".join(prose)))
        prose.clear()

    for line in markdown.splitlines():
        if _FENCE.match(line):
            if not in_fence and prose:
                flush()
            in_fence = not in_fence
            lines.append(line)
        elif in_fence:
            lines.append(line)
        else:
            # Python-Markdown requires an empty line before a list; other renderers do not.
            if _ITEM.match(line) and before and not _ITEM.match(before) and before[0] != " ":
                prose.append("")
            prose.append(line)
        before = line
    if prose:
        flush()
    return "\n".join(lines) + "\n"


def on_config(config: Any) -> Any:
    """Adds pages that `mkdocs.yml` does not name to the part of their folder.

    Also adds a link to the repository if a workflow of its host builds the site.
    """
    if repository := os.environ.get("GITHUB_REPOSITORY"):
        config.repo_url = f"{os.environ['GITHUB_SERVER_URL']}/{repository}"
        config.repo_name = repository
    named = set(_named(config.nav))
    for part in config.nav:
        ((title, pages),) = part.items()
        folder = ROOT / "docs" / PARTS.get(title, "-")
        if isinstance(pages, list) and folder.is_dir():
            found = (path.relative_to(ROOT / "docs") for path in folder.glob("*.md"))
            paths = sorted(path.as_posix() for path in found)
            # An introduction comes first.
            paths.sort(key=lambda path: not path.endswith(("/README.md", "/index.md")))
            pages.extend(path for path in paths if path not in named)
    return config


def _named(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        for value in nav.values():
            yield from _named(value)
    else:
        for value in nav:
            yield from _named(value)


def programs(documents: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Returns the pages of files that documents link to, as text by page.

    Documents are pairs of page and text.
    """
    pages = {}
    for page, markdown in documents:
        folder = posixpath.dirname(repository_path(page))
        for match in _LINK.finditer(markdown):
            path = posixpath.normpath(posixpath.join(folder, match[2].partition("#")[0]))
            there = site_path(path)
            if there is not None and there.startswith(f"{PROGRAMS}/"):
                language = LANGUAGES[posixpath.splitext(path)[1]]
                text = (ROOT / path).read_text(encoding="utf-8")
                pages[there] = (
                    "---\nsearch:\n  exclude: true\nhide: [navigation, toc]\n---\n\n"
                    f"# {path}\n\n``````{language}\n{text}``````\n"
                )
    return pages


def on_files(files: Any, config: Any) -> Any:
    """Adds the documents of `OUTSIDE`, and the programs that documents link to."""
    for outside, there in OUTSIDE.items():
        text = (ROOT / outside).read_text(encoding="utf-8")
        files.append(File.generated(config, there, content=text))
    documents = [(file.src_uri, file.content_string) for file in files.documentation_pages()]
    for there, text in programs(documents).items():
        files.append(File.generated(config, there, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Rewrites a document for the site, where readers choose light or dark."""
    if page.file.src_uri.startswith(f"{PROGRAMS}/"):
        return markdown
    markdown = markdown.replace(FRONT, front())
    return for_site(_PICTURE.sub(_picture, markdown), page.file.src_uri)
