"""The pages of the site, made of the Markdown of the repository.

The pages go on rendering where the repository is browsed: they link to one another, and to files,
by their paths. For the site all of them are copied into one folder:

1. A page of docs/ keeps its name; the others (`PAGES`) get one.
2. A link to another file of the repository leads to a page that shows the file.
3. The lists of links of index.md become the table of contents.
4. api/ has a page for each package.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from ._api import OVERVIEW, api_pages

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT: Final = Path(__file__).parent.parent

PAGES: Final = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "README.md": "readme.md",
    "benchmarks/README.md": "benchmarks.md",
    "dashboards/README.md": "dashboards.md",
    "experiments/README.md": "experiments.md",
}
"""Pages outside docs/: the file in the repository, and its name in the site."""

SOURCE: Final = "source"
"""Where the site shows files."""

LONGEST: Final = 64 << 10
"""Bytes of a file that the site shows."""

_PICTURES: Final = (".svg", ".png")
_LANGUAGES: Final = {
    ".css": "css",
    ".html": "html",
    ".js": "javascript",
    ".json": "json",
    ".py": "python",
    ".sh": "sh",
    ".toml": "toml",
    ".yaml": "yaml",
    ".yml": "yaml",
}
_FENCE: Final = re.compile(r"^ *```")
_LINK: Final = re.compile(r"(?<=\]\()(?!\w+:)([^()#\s]*)(#[^()\s]+)?(?=\))")
_ANCHOR: Final = re.compile(r'^<a id="([^"]+)"></a>$', re.MULTILINE)
_CONTENTS: Final = "```{toctree}\n:hidden:\n:titlesonly:\n"
_SECTION: Final = re.compile(r"^## (.+)$", re.MULTILINE)
_ENTRY: Final = re.compile(r"^- \[([^\]]+)\]\(([^)#]+)\.md\)", re.MULTILINE)


class BrokenLinkError(ValueError):
    """A page links to a file that is not in the repository."""


def write_site(folder: Path) -> None:
    """Write the pages of the site into a folder; what else is in it is removed.

    Raises:
        BrokenLinkError: A page links to a file that does not exist.
        OSError: A file cannot be read or written.
    """
    texts, pictures = _Copy().run()
    texts.update(api_pages())
    texts["index.md"] = _with_contents(texts["index.md"])
    wanted = {*texts, *pictures}
    for path in [path for path in folder.rglob("*") if path.is_file()]:
        if path.relative_to(folder).as_posix() not in wanted:
            path.unlink()
    for name, text in texts.items():
        path = folder / name
        # What has not changed keeps its time, so that Sphinx need not read it again.
        if not path.is_file() or path.read_text("utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
    for name, picture in pictures.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(picture, folder / name)


def page_of(path: str) -> str:
    """Return the name in the site of a file of the repository."""
    if path in PAGES:
        return PAGES[path]
    if path == "src/clearfunds/__init__.py":
        return f"api/{OVERVIEW}.md"
    if path.startswith("docs/") and path.endswith((".md", *_PICTURES)):
        return path.removeprefix("docs/")
    if path.endswith(_PICTURES):
        return f"{SOURCE}/{path}"
    return f"{SOURCE}/{path}.md"


class _Copy:
    """The pages, and the files that they link to."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}
        self._pictures: dict[str, Path] = {}
        self._files: set[str] = set()
        self._anchors: dict[str, set[str]] = {}

    def run(self) -> tuple[dict[str, str], dict[str, Path]]:
        pages = [*PAGES, *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md")))]
        for page in pages:
            text = (ROOT / page).read_text("utf-8")
            self._anchors[page] = set(_ANCHOR.findall(text))
        for page in pages:
            self._texts[page_of(page)] = self._translated(page)
        for file in sorted(self._files):
            self._texts[page_of(file)] = _source_page(file)
        if self._files:
            self._texts[f"{SOURCE}/index.md"] = _source_index(sorted(self._files))
        return self._texts, self._pictures

    def _translated(self, page: str) -> str:
        stem = page_of(page).removesuffix(".md")
        lines: list[str] = []
        in_code = False
        for line in (ROOT / page).read_text("utf-8").splitlines():
            if _FENCE.match(line):
                in_code = not in_code
            if in_code or line.startswith("    "):
                lines.append(line)
            else:
                line = _ANCHOR.sub(rf"({stem}-\1)=", line)
                lines.append(_LINK.sub(lambda found: self._target(page, found), line))
        return "\n".join(lines) + "\n"

    def _target(self, page: str, found: re.Match[str]) -> str:
        path = os.path.normpath(PurePosixPath(page).parent / found[1]) if found[1] else page
        anchor: str = found[2] or ""
        if path.startswith("..") or not (ROOT / path).exists():
            msg = f"{page} links to {found[1]}, which is not in the repository"
            raise BrokenLinkError(msg)
        if anchor.removeprefix("#") in self._anchors.get(path, ()):
            return f"#{page_of(path).removesuffix('.md')}-{anchor.removeprefix('#')}"
        if not found[1]:
            return anchor
        name = page_of(path)
        if path.endswith(_PICTURES):
            self._pictures[name] = ROOT / path
        elif name.startswith(f"{SOURCE}/"):
            self._files.add(path)
            anchor = ""
        return os.path.relpath(name, PurePosixPath(page_of(page)).parent) + anchor


def _files_of(path: str) -> Iterable[Path]:
    whole = ROOT / path
    if whole.is_file():
        return [whole]
    return sorted(
        each
        for each in whole.rglob("*")
        if each.is_file() and "__pycache__" not in each.parts and each.suffix != ".pyc"
    )


def _source_page(path: str) -> str:
    parts = [f"# {path}\n"]
    for file in _files_of(path):
        name = file.relative_to(ROOT).as_posix()
        if name != path:
            parts.append(f"## {name}\n")
        if file.stat().st_size > LONGEST:
            parts.append("Too long to be shown here.\n")
            continue
        language = _LANGUAGES.get(file.suffix, "text")
        parts.append(f"`````{language}\n{file.read_text('utf-8').rstrip()}\n`````\n")
    return "\n".join(parts)


def _source_index(files: list[str]) -> str:
    entries = "\n".join(f"{file} <{file}>" for file in files)
    contents = f"```{{toctree}}\n:titlesonly:\n\n{entries}\n```\n"
    return f"# Source files\n\nFiles that the pages link to.\n\n{contents}"


def _with_contents(text: str) -> str:
    """Return index.md with a table of contents: the pages that the lists of each section have."""
    head, *sections = _SECTION.split(text)
    parts = [head]
    for caption, section in zip(sections[::2], sections[1::2], strict=True):
        entries = "\n".join(f"{title} <{page}>" for title, page in _ENTRY.findall(section))
        contents = (
            f"```{{toctree}}\n:hidden:\n:titlesonly:\n:caption: {caption}\n\n{entries}\n```\n"
        )
        parts.append(f"## {caption}{section.rstrip()}\n\n{contents}\n")
    parts.append(f"```{{toctree}}\n:hidden:\n:titlesonly:\n\n{SOURCE}/index\n```\n")
    return "".join(parts)
