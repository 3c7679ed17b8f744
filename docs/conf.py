"""Sphinx's configuration of the site; `make docs` builds it, from what `docs._site` writes."""

import tomllib
from pathlib import Path

_ROOT = Path(__file__).parent.parent
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text("utf-8"))["project"]

project = _PROJECT["name"]
author = _PROJECT["authors"][0]["name"]
project_copyright = f"%Y {author}"
version = release = _PROJECT["version"]

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "docs._api",
]
highlight_language = "none"
# They would make a dash of the two that begin an option.
smartquotes = False

# Anchors of headings are those of GitHub.
myst_heading_anchors = 6
# A page of the repository may begin with a comment, or with a heading of the second level.
# Names such as `bytes` in docstrings of types are those of several classes.
suppress_warnings = ["myst.header", "misc.highlighting_failure", "ref.python"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "separated"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
toc_object_entries = False
# Signatures name types of the standard library and of private modules, which have no pages.
nitpick_ignore_regex = [("py:.*", ".*")]

html_theme = "furo"
html_title = f"{project} {release}"
html_last_updated_fmt = f"%Y-%m-%d, for version {release}"
html_static_path = [str(_ROOT / "docs/site.css")]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_theme_options: dict[str, list[str]] = {"top_of_page_buttons": []}
