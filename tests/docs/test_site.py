"""The documentation as a site: no warning, no broken link, and it needs no network."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

import pytest

pytest.importorskip("sphinx", reason="sphinx is not installed (pip install -e '.[docs]')")

from docs._api import PACKAGES, api_pages
from docs._site import PAGES, BrokenLinkError, page_of, write_site

ROOT: Final = Path(__file__).parents[2]
DOCS: Final = sorted((ROOT / "docs").glob("*.md"))


class Page(HTMLParser):
    """The anchors of a page, where it leads, and what a browser loads for it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.leads: set[str] = set()
        self.loads: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value for name, value in attrs if value is not None}
        self.anchors.update(given[name] for name in ("id", "name") if name in given)
        if tag == "a" and "href" in given:
            self.leads.add(given["href"])
        if tag == "link" and "href" in given:
            self.loads.add(given["href"])
        if "src" in given:
            self.loads.add(given["src"])


@pytest.mark.long
def test_the_site(tmp_path: Path) -> None:
    """One test, because the site takes half a minute to build."""
    site = tmp_path / "docs"
    built = subprocess.run(
        [sys.executable, "-m", "docs", str(site)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    # A warning is an error.
    assert built.returncode == 0, built.stderr
    pages = {
        path.relative_to(site).as_posix(): Page(path.read_text("utf-8"))
        for path in site.rglob("*.html")
    }
    has_every_page(site)
    has_no_broken_link(site, pages)
    needs_no_network(site, pages)
    can_be_searched(site)
    is_dated(site, pages)


def has_every_page(site: Path) -> None:
    for name in [*PAGES, *(f"docs/{path.name}" for path in DOCS)]:
        assert (site / page_of(name)).with_suffix(".html").is_file(), name


def has_no_broken_link(site: Path, pages: dict[str, Page]) -> None:
    broken: set[str] = set()
    looked_at = 0
    for name, page in pages.items():
        for lead in page.leads | page.loads:
            url = urlsplit(lead)
            if url.scheme or url.netloc:
                continue
            looked_at += 1
            target = (site / name).parent / unquote(url.path) if url.path else site / name
            file = target.resolve()
            if not file.is_file():
                broken.add(f"{name}: {lead}")
            elif url.fragment and file.suffix == ".html":
                other = pages[file.relative_to(site.resolve()).as_posix()]
                if unquote(url.fragment) not in other.anchors:
                    broken.add(f"{name}: {lead}")
    assert not broken
    assert looked_at > 1_000


def needs_no_network(site: Path, pages: dict[str, Page]) -> None:
    for name, page in pages.items():
        elsewhere = {lead for lead in page.loads if urlsplit(lead).netloc}
        assert not elsewhere, name
    for sheet in site.rglob("*.css"):
        urls: list[str] = re.findall(r"url\(([^)]*)\)", sheet.read_text("utf-8"))
        assert not [url for url in urls if url.strip("'\"").startswith(("http", "//"))], sheet


def can_be_searched(site: Path) -> None:
    text = (site / "searchindex.js").read_text("utf-8")
    index = json.loads(text.removeprefix("Search.setIndex(").removesuffix(")"))
    for page in ("relay", "options", "metrics", "patience", "api/accounts"):
        assert page in index["docnames"]
    # In its form without an ending, as the search asks for it.
    fastapi = index["docnames"].index("fastapi")
    assert (
        index["titleterms"]["backpressur"] == fastapi
        or fastapi in index["titleterms"]["backpressur"]
    )


def is_dated(site: Path, pages: dict[str, Page]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    dated = re.compile(rf"\d{{4}}-\d\d-\d\d, for version {re.escape(project['version'])}")
    for name in pages:
        if name not in ("search.html", "genindex.html", "py-modindex.html"):
            assert dated.search((site / name).read_text("utf-8")), name


def test_every_page_is_in_the_table_of_contents() -> None:
    index = (ROOT / "docs/index.md").read_text("utf-8")
    for path in DOCS:
        if path.name != "index.md":
            assert f"]({path.name})" in index, f"docs/index.md has no link to {path.name}"


def test_each_public_package_has_a_page() -> None:
    names = api_pages()
    for package in PACKAGES:
        assert f"api/{package}.md" in names
    assert "Ledger" in names["api/accounts.md"]
    # A name that two packages export is described in one.
    assert "`TransportError`: [transports](transports.md)" in names["api/sockets.md"]


def test_a_link_to_a_file_that_is_not_there_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# Index\n\n[there](../relay/nothing.py)\n", "utf-8")
    for name in PAGES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("# Page\n", "utf-8")
    monkeypatch.setattr("docs._site.ROOT", tmp_path)
    with pytest.raises(BrokenLinkError, match=r"docs/index\.md links to \.\./relay/nothing\.py"):
        write_site(tmp_path / "site")
