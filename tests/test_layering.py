"""The order of the folders, relative imports, no I/O, no long class: read off the source."""

import ast
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: From the bottom up: a layer imports itself and what stands before it. ranges/ has several: its
#: log and its sink are tenants of the dataspace, and what transports/ keeps and shows of them knows
#: them; its server binds them to a link, a session and an outlet, as transports/mqtt/server does
#: for MQTT, so it stands on transports/.
LAYERS = (
    *("accounts", "dataspace", "streams", "store", "ranges.wire", "ranges.log", "ranges.sink"),
    *("persistence", "ranges.client", "access", "sockets", "transports", "ranges.server"),
    *("pages", "asgi", "cluster", "relay", "perf", "pipeline"),
)
FOLDERS = tuple(dict.fromkeys(layer.split(".")[0] for layer in LAYERS))
#: The folders of some packages, each with those beside it that it may import.
ROOMS: dict[str, dict[str, tuple[str, ...]]] = {
    "transports.mqtt": {"codec": (), "client": ("codec",), "server": ("codec",)},
    "transports.nats": {"codec": (), "client": ("codec",), "jetstream": ("client", "codec")},
    "ranges": {
        "wire": (),
        "log": ("wire",),
        "sink": ("wire",),
        "client": ("wire",),
        "server": ("wire", "log", "sink"),
    },
}
#: Knows bytes and numbers only: each with all that it may import of the other layers.
ALONE: dict[str, tuple[str, ...]] = {
    "store": (),
    "ranges.wire": (),
    "ranges.client": ("ranges.wire",),
}
#: Spark's workers import these: the standard library is enough.
STANDARD = ("ranges.wire", "ranges.client")
#: On top of all: nothing that is installed imports it, nor do the examples.
EXPERIMENTS = "experiments"
#: Talks to a relay as any client does, from processes that have no event loop: it imports the
#: blocking clients; the journal, which the relay writes, also what the relay keeps books with.
CLIENT = "pipeline"
CLIENT_IMPORTS = ("pipeline", "ranges.client")
#: What the pages of reports are made with: the standard library only. It stands in the package
#: itself, where checkers do not find it from the folders at the root, and so it is imported by its
#: full name. There is no second copy to take it for.
PAGE_KIT = "clearfunds._html"
PAGE_MAKERS = ("perf", "pipeline")
BOOKS = (("pipeline", "journal"), "accounts")
NO_IO = ("accounts", "dataspace", "ranges.wire", "ranges.log", "ranges.sink")
IO_MODULES = frozenset(
    {
        *("asyncio", "fcntl", "ftplib", "h11", "http", "io", "mmap", "multiprocessing", "os"),
        *("pathlib", "select", "selectors", "shutil", "signal", "smtplib"),
        *("socket", "socketserver", "sqlite3", "ssl", "subprocess", "tempfile", "urllib"),
    }
)
#: An import of a folder by its bare name.
BARE_NAME = re.compile(rf"^ *(?:import|from) +(?:{'|'.join(FOLDERS)})\b.*", re.MULTILINE)
IO_BUILTINS = frozenset({"input", "open", "print"})
#: What these two may have of Trio: ways to wait, to be cancelled and to say so. Nothing that
#: reads, writes, listens or spawns.
TRIO_NAMES = frozenset(
    {
        *("BrokenResourceError", "BusyResourceError", "Cancelled", "ClosedResourceError"),
        *("CapacityLimiter", "Condition", "EndOfChannel", "Event", "Lock", "Semaphore"),
        *(
            "WouldBlock",
            "abc",
            "current_time",
            "fail_after",
            "move_on_after",
            "move_on_at",
            "CancelScope",
        ),
        *("lowlevel.ParkingLot", "lowlevel.cancel_shielded_checkpoint", "lowlevel.checkpoint"),
        *("lowlevel.current_trio_token", "lowlevel.in_trio_run", "lowlevel.in_trio_task"),
        *("lowlevel.Task", "lowlevel.checkpoint_if_cancelled", "lowlevel.current_task", "sleep"),
    }
)
#: The modules below `transports/` that know Trio: one that waits for all others, and those that
#: raise its errors.
TRIO_MODULES = (
    "accounts/_loop.py",
    "accounts/watch/_over_limit.py",
    "dataspace/_mailbox.py",
    "dataspace/queues/_ack_batcher.py",
    "dataspace/queues/_window.py",
)
#: The one that knows asyncio.
ASYNCIO_MODULE = "accounts/_asyncio_loop.py"

#: Most lines of a class: one that is longer does several things.
CLASS_LINES = 600
#: Folders at the root that hold no sources, or copies of them.
MADE = ("build", "dist")

SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))


def imports_of(tree: ast.AST) -> list[ast.Import | ast.ImportFrom]:
    """Return all statements that import."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]


def imported(tree: ast.AST, module: tuple[str, ...]) -> list[tuple[int, str]]:
    """Return (line, name) of all that is imported; own modules start with `clearfunds.`.

    `module` is where the source stands below the package: `("accounts", "_account")`.
    """
    found: list[tuple[int, str]] = []
    for node in imports_of(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif node.level == 0:
            found.append((node.lineno, node.module or ""))
        else:
            base = ("clearfunds", *module)[: -node.level]
            name = ".".join((*base, node.module)) if node.module is not None else ".".join(base)
            if node.module is not None and name.removeprefix("clearfunds.") not in ROOMS:
                found.append((node.lineno, name))
            else:
                found += [(node.lineno, f"{name}.{alias.name}") for alias in node.names]
    return found


def layer_of(module: Sequence[str]) -> str | None:
    """Return the layer of a module, given by where it stands below the package."""
    names = (".".join(module[:2]), ".".join(module[:1]))
    return next((name for name in names if name in LAYERS), None)


def absolute_imports(tree: ast.AST) -> list[tuple[int, str]]:
    """Return (line, name) of the own modules that are imported by their full names."""
    found: list[tuple[int, str]] = []
    for node in imports_of(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif node.level == 0:
            names = [node.module or ""]
        else:
            continue
        own = ("clearfunds", *FOLDERS)
        found += [
            (node.lineno, name) for name in names if name.split(".")[0] in own and name != PAGE_KIT
        ]
    return found


def trio_names(tree: ast.AST) -> list[tuple[int, str]]:
    """Return (line, dotted name) of all that is taken from Trio, annotations apart."""
    found: list[tuple[int, str]] = []
    inner: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "trio":
            prefix = (node.module or "").split(".")[1:]
            found += [(node.lineno, ".".join([*prefix, alias.name])) for alias in node.names]
        elif isinstance(node, ast.Attribute) and node not in inner:
            parts: list[str] = []
            value: ast.expr = node
            while isinstance(value, ast.Attribute):
                parts.append(value.attr)
                value = value.value
                inner.add(value)
            if isinstance(value, ast.Name) and value.id == "trio":
                parts.reverse()
                wanted = parts[:2] if parts[0] == "lowlevel" else parts[:1]
                found.append((node.lineno, ".".join(wanted)))
    return found


def upward(tree: ast.AST, module: tuple[str, ...]) -> list[str]:
    """Say which imports go against the order of the layers."""
    here = layer_of(module)
    wrong: list[str] = []
    for line, name in imported(tree, module):
        parts = name.split(".")[1:]
        if not name.startswith("clearfunds") or (name == PAGE_KIT and here in PAGE_MAKERS):
            continue
        there = layer_of(parts)
        if here == CLIENT:
            reads_books = module[:2] == BOOKS[0] and there == BOOKS[1]
            if not reads_books and there not in CLIENT_IMPORTS:
                wrong.append(f"line {line}: {name}, and {CLIENT} is a client of the relay")
        elif here in ALONE and there not in (here, *ALONE[here]):
            wrong.append(f"line {line}: {name}, and {here} stands alone")
        elif there is None:
            wrong.append(f"line {line}: {name} is above all layers")
        elif here is None or LAYERS.index(there) > LAYERS.index(here):
            wrong.append(f"line {line}: {name} is above {here}")
    return wrong


def across(tree: ast.AST, module: tuple[str, ...], package: str) -> list[str]:
    """Say which imports of a module in a folder of a package are of a folder that is not for it."""
    above = f"clearfunds.{package}."
    room = module[package.count(".") + 1]
    allowed = ROOMS[package][room]
    return [
        f"line {line}: {name}, and {room} may import {allowed}"
        for line, name in imported(tree, module)
        if name.startswith(above) and name.removeprefix(above).split(".")[0] not in (room, *allowed)
    ]


def in_and_output(tree: ast.AST, path: str) -> list[str]:
    """Say what does I/O here."""
    wrong = [
        f"line {line}: import of {name}"
        for line, name in imported(tree, tuple(path.removesuffix(".py").split("/")))
        if name.split(".")[0] in IO_MODULES and not (name == "asyncio" and path == ASYNCIO_MODULE)
    ]
    wrong += [
        f"line {node.lineno}: call of {node.func.id}()"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in IO_BUILTINS
    ]
    taken = trio_names(tree)
    if taken and not path.startswith(TRIO_MODULES):
        wrong += [f"line {line}: trio.{name} where nobody waits" for line, name in taken]
    else:
        wrong += [
            f"line {line}: trio.{name} is not a way to wait"
            for line, name in taken
            if name not in TRIO_NAMES
        ]
    return wrong


def unmarked_exports(tree: ast.AST) -> list[str]:
    """Say which re-exports of an `__init__` checkers would take for private."""
    return [
        f"line {node.lineno}: from {'.' * node.level}{node.module or ''} import {alias.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.level > 0
        for alias in node.names
        if alias.asname != alias.name
    ]


def long_classes(tree: ast.AST) -> list[str]:
    """Say which classes have more than `CLASS_LINES` lines."""
    sizes = [
        (node.name, (node.end_lineno or node.lineno) - node.lineno + 1)
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    ]
    return [f"{name} has {size} lines" for name, size in sizes if size > CLASS_LINES]


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


@cache
def imports_in(path: Path) -> ast.Module:
    """Return a module with the statements that import: several tests look at them.

    Whole, all modules are millions of objects, at which the collector would look in all tests to
    come.
    """
    return ast.Module([*imports_of(parse(path))], [])


def place(path: Path) -> tuple[str, ...]:
    return path.relative_to(ROOT).with_suffix("").parts


def label(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def layers(names: Sequence[str]) -> list[Path]:
    """Return the modules of these layers."""
    paths = [path for path in SOURCES if layer_of(place(path)) in names]
    assert len(paths) > 3
    return paths


def faults(
    paths: Iterable[Path], check: Callable[[Path], Sequence[object]]
) -> dict[str, Sequence[object]]:
    """Say what is wrong in which files."""
    return {label(path): found for path in paths if (found := check(path))}


def test_imports_point_one_way() -> None:
    assert faults(SOURCES, lambda path: upward(imports_in(path), place(path))) == {}


def test_the_page_kit_needs_the_standard_library_only() -> None:
    paths = list((ROOT / "src" / "clearfunds" / "_html").glob("*.py"))
    assert len(paths) > 3
    for path in paths:
        for line, name in imported(imports_in(path), ("_html", path.stem)):
            known = name.startswith(f"{PAGE_KIT}.") or name.split(".")[0] in sys.stdlib_module_names
            assert known, f"{label(path)}, line {line}: {name}"


@pytest.mark.parametrize(("package", "room"), [(p, room) for p in ROOMS for room in ROOMS[p]])
def test_the_folders_of_a_package_import_one_way(package: str, room: str) -> None:
    paths = list((ROOT / package.replace(".", "/") / room).rglob("*.py"))
    assert len(paths) > 3
    for path in paths:
        assert across(imports_in(path), place(path), package) == []


def test_the_standard_library_is_enough() -> None:
    def others(path: Path) -> list[str]:
        names = {name.split(".")[0] for _, name in imported(imports_in(path), place(path))}
        return sorted(names - {*sys.stdlib_module_names, "clearfunds"})

    assert faults(layers(STANDARD), others) == {}


def test_own_code_is_imported_relatively() -> None:
    assert faults(SOURCES, lambda path: absolute_imports(imports_in(path))) == {}


def test_no_input_or_output() -> None:
    assert faults(layers(NO_IO), lambda path: in_and_output(parse(path), label(path))) == {}


def test_exports_are_marked_as_such() -> None:
    paths = [path for path in SOURCES if path.name == "__init__.py"]
    assert len(paths) > 20
    assert faults(paths, lambda path: unmarked_exports(imports_in(path))) == {}


def test_no_class_is_too_long() -> None:
    paths = [*ROOT.glob("*.py")]
    for folder in ROOT.iterdir():
        if folder.is_dir() and folder.name not in MADE and not folder.name.startswith("."):
            paths += folder.rglob("*.py")
    assert len(paths) > len(SOURCES)
    # Few files are long enough to be parsed for it.
    long = [path for path in paths if path.read_bytes().count(b"\n") > CLASS_LINES]
    assert faults(long, lambda path: long_classes(parse(path))) == {}


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_with_sources_is_a_package(folder: str) -> None:
    assert (ROOT / folder / "__init__.py").is_file()
    for path in (ROOT / folder).rglob("*.py"):
        assert (path.parent / "__init__.py").is_file()


def test_nothing_below_the_experiments_imports_them() -> None:
    below = [*SOURCES, *(ROOT / "src").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    for path in below:
        names = [name for _, name in imported(imports_in(path), (path.stem,))]
        assert not [name for name in names if name.split(".")[0] == EXPERIMENTS], label(path)


def test_nothing_outside_imports_the_folders_by_their_bare_names() -> None:
    for folder in ("src/clearfunds", "tests", "examples", "benchmarks", EXPERIMENTS):
        for path in (ROOT / folder).rglob("*.py"):
            found = BARE_NAME.search(path.read_text("utf-8"))
            assert found is None, f"{label(path)}: {found[0]}"


@pytest.mark.parametrize(
    ("module", "source", "wrong"),
    [
        (("accounts", "_a"), "from ..dataspace import Mailbox", 1),
        (("accounts", "_a"), "from .. import transports", 1),
        (("accounts", "_a"), "from ._b import B", 0),
        (("dataspace", "_a"), "from ..accounts._b import B", 0),
        (("dataspace", "_a"), "def f():\n    from ..transports.mqtt import B", 1),
        (("dataspace", "_a"), "from ..store import Store", 1),
        (("store", "_a"), "from ..accounts import Account", 1),
        (("store", "_a"), "from ._b import B", 0),
        (("transports", "_a"), "from ..pipeline.journal import Journal", 1),
        (("transports", "_a"), "from ..perf import measure", 1),
        (("transports", "_a"), "from ..relay import serve_relay", 1),
        (("transports", "mqtt", "_a"), "from ...pages import Pages", 1),
        (("pages", "_a"), "from ..relay import serve_relay", 1),
        (("relay", "_a"), "from ..pages import Pages", 0),
        (("perf", "_a"), "from ..transports.mqtt import Connection", 0),
        (("perf", "_a"), "from clearfunds._html import text", 0),
        (("pages", "_a"), "from clearfunds._html import text", 1),
        (("pipeline", "journal", "_a"), "from ...accounts import Ledger", 0),
        (("pipeline", "source", "_a"), "from ...ranges.client import RangeReader", 0),
        (("pipeline", "source", "_a"), "from ...ranges.wire import Kind", 1),
        (("ranges", "__init__"), "from .client import RangeReader", 1),
        (("ranges", "wire", "_a"), "from ...accounts import Account", 1),
        (("ranges", "client", "_a"), "from ..wire import Kind", 0),
        (("ranges", "client", "_a"), "from ...store import Store", 1),
        (("ranges", "log", "_a"), "from ...dataspace import Dataspace", 0),
        (("ranges", "log", "_a"), "from ...transports import Link", 1),
        (("ranges", "server", "_a"), "from ...transports._session import Session", 0),
        (("transports", "_a"), "from ..ranges.log import RangeSubscription", 0),
        (("transports", "_a"), "from ..ranges import server", 1),
        (("persistence", "_a"), "from ..store import Store", 0),
        (("persistence", "_a"), "from ..ranges.log import RangeSubscription", 0),
        (("persistence", "_a"), "from ..transports import Flusher", 1),
        (("store", "_a"), "from ..persistence import Shelves", 1),
        (("pipeline", "source", "_a"), "from ...accounts import Ledger", 1),
        (("pipeline", "journal", "_a"), "from ...transports import serve_relay", 1),
        (("transports", "mqtt", "_a"), "from ..._cli import B", 1),
        (("transports", "mqtt", "_a"), "from .. import _cli", 0),  # transports' own _cli
        (("transports", "mqtt", "_a"), "from ...accounts import B", 0),
    ],
)
def test_the_check_of_the_order_finds_what_is_wrong(
    module: tuple[str, ...], source: str, wrong: int
) -> None:
    assert len(upward(ast.parse(source), module)) == wrong


@pytest.mark.parametrize(
    ("room", "source", "wrong"),
    [
        ("codec", "from ..client._open import open_mqtt", 1),
        ("codec", "from ..server import _session", 1),
        ("client", "from ..server._session import MqttSession", 1),
        ("client", "from ..codec._frames import encode", 0),
        ("server", "from ._mqtt5 import Mqtt5\nfrom ..._outlet import Outlet", 0),
        ("server", "from ..client._client import MqttClient", 1),
    ],
)
def test_the_check_of_mqtts_folders_finds_what_is_wrong(room: str, source: str, wrong: int) -> None:
    module = ("transports", "mqtt", room, "_a")
    assert len(across(ast.parse(source), module, "transports.mqtt")) == wrong


def test_the_check_of_the_folders_of_ranges_finds_what_is_wrong() -> None:
    source = ast.parse("from ..log import Head\nfrom ..wire import Kind\nfrom .. import server")
    assert len(across(source, ("ranges", "sink", "_a"), "ranges")) == 2


@pytest.mark.parametrize(
    ("path", "source", "wrong"),
    [
        ("accounts/_a.py", "import socket", 1),
        ("accounts/_a.py", "import os.path", 1),
        ("accounts/_a.py", "from http import client", 1),
        ("accounts/_a.py", "import math, collections.abc", 0),
        ("accounts/_a.py", "open('x')", 1),
        ("accounts/_a.py", "ledger.open('x')", 0),
        ("accounts/_loop.py", "import trio\ntrio.Event()\ntrio.lowlevel.ParkingLot()", 0),
        ("accounts/_loop.py", "import trio\nawait_ = trio.socket.socket()", 1),
        ("accounts/_loop.py", "import trio\ntrio.lowlevel.wait_readable(1)", 1),
        ("accounts/_loop.py", "from trio import open_nursery", 1),
        ("accounts/_a.py", "import trio\ntrio.Event()", 1),
        ("accounts/_a.py", "import asyncio", 1),
        ("accounts/_asyncio_loop.py", "import asyncio", 0),
        ("accounts/_asyncio_loop.py", "import socket", 1),
        ("dataspace/_index.py", "import trio\ntrio.Event()", 1),
        ("dataspace/_mailbox.py", "import trio\ntrio.Event()", 0),
    ],
)
def test_the_check_for_io_finds_what_is_wrong(path: str, source: str, wrong: int) -> None:
    assert len(in_and_output(ast.parse(source), path)) == wrong


@pytest.mark.parametrize("source", ["import accounts", "    from relay import serve_relay\n"])
def test_the_check_for_bare_names_finds_them(source: str) -> None:
    assert BARE_NAME.search(f"import trio\n{source}")
    assert not BARE_NAME.search("from clearfunds.accounts import A\nfrom tests.relay import b")


def test_the_check_of_exports_finds_what_is_wrong() -> None:
    assert unmarked_exports(ast.parse("from ._a import A as A, B as B\nimport math")) == []
    assert len(unmarked_exports(ast.parse("from ._a import A, B as C"))) == 2
    assert len(unmarked_exports(ast.parse("from ._a import *"))) == 1


def test_the_check_of_classes_finds_long_ones() -> None:
    body = "    a = 1\n" * (CLASS_LINES - 1)
    assert long_classes(ast.parse(f"class Fits:\n{body}")) == []
    found = long_classes(ast.parse(f"def f():\n  class Long:\n{body}    b = 2\n"))
    assert found == [f"Long has {CLASS_LINES + 1} lines"]


def test_the_check_of_relative_imports_finds_what_is_wrong() -> None:
    source = "import clearfunds.accounts\nfrom accounts import A\nfrom ..accounts import A\n"
    assert [line for line, _ in absolute_imports(ast.parse(source))] == [1, 2]
