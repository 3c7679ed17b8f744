"""Pages of the API: one for each package, with the names that it exports."""

from __future__ import annotations

import ast
import builtins
import re
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sphinx import addnodes
from sphinx.errors import PycodeError
from sphinx.pycode import ModuleAnalyzer

if TYPE_CHECKING:
    from sphinx.application import Sphinx

SOURCE: Final = Path(__file__).parent.parent / "src/clearfunds"

OVERVIEW: Final = "clearfunds"
"""The page of the package itself."""

PACKAGES: Final = (
    "accounts",
    "dataspace",
    "dataspace.queues",
    "dataspace.exchanges",
    "streams",
    "asgi",
    "transports",
    "transports.mqtt",
    "transports.syndicate",
    "transports.nats",
    "sockets",
    "access",
    "access.acl",
    "relay",
    "pages",
    "pages.otel",
    "store",
    "ranges.client",
    "pipeline.journal",
    "pipeline.ledger",
    "pipeline.report",
    "pipeline.sink",
    "pipeline.source",
    "perf",
)
"""The packages that programs use, in the order in which a reader needs them."""

MODULES: Final = ("testing",)
"""Modules that are public by themselves."""

_VALUES: Final = ("attribute", "data", "property")
"""Kinds of objects whose docstrings have no sections."""

_COLON: Final = "\N{RATIO}"

_CODE: Final = re.compile(r"(?<!`)`([^`]+)`(?!`)(?=(\w)?)")


def exports(package: str) -> dict[str, str]:
    """Return the names that a package exports, and for each the module it is imported from.

    Args:
        package: Its name below `clearfunds`; `""` for that itself.
    """
    here = ["clearfunds", *(part for part in package.split(".") if part)]
    tree = ast.parse((SOURCE.joinpath(*here[1:]) / "__init__.py").read_text("utf-8"))
    return {
        name.asname: ".".join([*here[: len(here) - node.level + 1], node.module or ""])
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level
        for name in node.names
        if name.asname is not None
    }


def api_pages() -> dict[str, str]:
    """Return the pages of the API, by their names in the site."""
    pages: dict[str, str] = {}
    homes: dict[tuple[str, str], str] = {}
    for package in PACKAGES:
        own: list[str] = []
        others: dict[str, str] = {}
        for name, module in exports(package).items():
            home = _home(f"clearfunds.{package}", module, name)
            if home in homes:
                others[name] = homes[home]
            elif home[0].startswith("clearfunds."):
                homes[home] = package
                own.append(name)
        pages[f"api/{package}.md"] = _page(package, own, others)
    for module in MODULES:
        pages[f"api/{module}.md"] = _page(module, [], {})
    pages[f"api/{OVERVIEW}.md"] = _overview()
    return pages


def _home(package: str, module: str, name: str) -> tuple[str, str]:
    """Return the module that defines an exported object, and the object's name there."""
    value = getattr(import_module(package), name)
    return getattr(value, "__module__", None) or module, getattr(value, "__qualname__", name)


def _page(dotted: str, own: list[str], others: dict[str, str]) -> str:
    package = f"clearfunds.{dotted}"
    lines = [f".. automodule:: {package}", f"   :members: {', '.join(own)}".rstrip()]
    if own:
        lines.append("   :imported-members:")
        for name in own:
            value = getattr(import_module(package), name)
            if not callable(value):
                # Of a module's constants, autodoc itself takes only those that it defines.
                is_short = value is None or isinstance(value, (bool, bytes, float, int, str))
                lines += ["", f".. autodata:: {package}.{name}"]
                lines += [] if is_short else ["   :no-value:"]
    directives = "\n".join(lines)
    text = f"# {package}\n\n```{{eval-rst}}\n{directives}\n```\n"
    if others:
        rows = "".join(f"- `{name}`: [{home}]({home}.md)\n" for name, home in others.items())
        text += f"\n## Also exported here\n\n{rows}"
    return text


def _overview() -> str:
    rows = "".join(
        f"| `{name}` | [{home}]({home.removeprefix('clearfunds.')}.md) |\n"
        for name, home in sorted(exports("").items(), key=lambda item: item[0].lower())
    )
    contents = "\n".join([*PACKAGES, *MODULES])
    return (
        "# API\n\n```{eval-rst}\n.. automodule:: clearfunds\n   :no-members:\n```\n\n"
        "## Names of `clearfunds`\n\n| name | described in |\n| - | - |\n"
        f"{rows}\n## Packages\n\n```{{toctree}}\n:titlesonly:\n\n{contents}\n```\n"
    )


_INDENTED: Final = re.compile(r"(?m)^(?![ :.*-])(.*)(?<!::)\n\n(?=    )")


def _before_napoleon(
    _app: Sphinx, what: str, name: str, _obj: Any, _options: Any, lines: list[str]
) -> None:
    """Find the docstring of a constant; keep what Napoleon would take apart."""
    if what == "data":
        lines[:] = _docstring_of_constant(name)
    lines[:] = _CODE.sub(_literal, "\n".join(lines)).split("\n")
    if what in _VALUES:
        # Napoleon takes all before the first colon for a type.
        lines[:] = [line.replace(":", _COLON) for line in lines]


def _after_napoleon(
    _app: Sphinx, what: str, _name: str, _obj: Any, _options: Any, lines: list[str]
) -> None:
    """Make an indented block code, as in Markdown."""
    if what in _VALUES:
        lines[:] = [line.replace(_COLON, ":") for line in lines]
    lines[:] = _INDENTED.sub("\\1\n\n::\n\n", "\n".join(lines)).split("\n")


def _literal(found: re.Match[str]) -> str:
    return f"``{found[1]}``" + ("\\ " if found[2] else "")


def _docstring_of_constant(name: str) -> list[str]:
    # It stands below the constant in the module that defines it, not where it is exported.
    package, _, constant = name.rpartition(".")
    path = package.removeprefix("clearfunds").removeprefix(".")
    module = exports(path).get(constant, package)
    try:
        documents = ModuleAnalyzer.for_module(module).find_attr_docs()
    except PycodeError:
        return []
    return documents.get(("", constant), [])


def _leave_out_references(_app: Sphinx, doctree: Any) -> None:
    """Leave out references to names that have no page: Sphinx would guess, `bytes` for one."""
    for reference in list(doctree.findall(addnodes.pending_xref)):
        target = str(reference.get("reftarget", ""))
        last = target.rpartition(".")[2]
        if reference.get("refdomain") == "py" and (hasattr(builtins, target) or last.islower()):
            reference.replace_self(reference.children)


def setup(app: Sphinx) -> dict[str, bool]:
    """Take part in the building of the site."""
    app.connect("autodoc-process-docstring", _before_napoleon, priority=400)
    app.connect("autodoc-process-docstring", _after_napoleon, priority=600)
    app.connect("doctree-read", _leave_out_references)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
