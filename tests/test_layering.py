"""The one-way order of the folders, relative imports, no I/O: read off the source."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
#: From the bottom up: a layer imports itself and what stands before it.
LAYERS = ("accounts", "dataspace", "store", "transports", "pages", "relay", "perf", "pipeline")
#: The folders of transports/mqtt, each with those that it may import.
OF_MQTT = {"codec": (), "client": ("codec",), "server": ("codec",)}
#: On top of all: nothing that is installed imports it, nor do the examples.
EXPERIMENTS = "experiments"
#: Knows bytes and numbers only: it imports no other layer.
ALONE = ("store",)
#: Talks to a relay as any client does, from processes that have no event loop: it imports the
#: blocking clients; the journal, which the relay writes, also what the relay keeps books with.
CLIENT = "pipeline"
CLIENT_IMPORTS = ("pipeline", "range_client", "relay_client", "sink_client")
#: These stand in the package itself, where checkers do not find them from the folders at the root:
#: they are imported by their full names. There is no second copy to take them for.
CLIENTS = ("clearfunds.range_client", "clearfunds.relay_client", "clearfunds.sink_client")
BOOKS = (("pipeline", "journal"), "accounts")
NO_IO = ("accounts", "dataspace")
IO_MODULES = frozenset(
    {
        *("asyncio", "fcntl", "ftplib", "h11", "http", "io", "mmap", "multiprocessing", "os"),
        *("pathlib", "select", "selectors", "shutil", "signal", "smtplib"),
        *("socket", "socketserver", "sqlite3", "ssl", "subprocess", "tempfile", "urllib"),
    }
)
#: An import of a folder by its bare name.
BARE_NAME = re.compile(rf"^ *(?:import|from) +(?:{'|'.join(LAYERS)})\b.*", re.MULTILINE)
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
        *("lowlevel.Task", "lowlevel.checkpoint_if_cancelled", "lowlevel.current_task", "sleep"),
    }
)
#: The modules below `transports/` that may wait; all others there are plain functions.
TRIO_MODULES = (
    "accounts/",
    "dataspace/_mailbox.py",
    "dataspace/queues/_ack_batcher.py",
    "dataspace/queues/_stream.py",
    "dataspace/queues/_window.py",
)

SOURCES = sorted(path for layer in LAYERS for path in (ROOT / layer).rglob("*.py"))


def imported(tree: ast.AST, module: tuple[str, ...]) -> list[tuple[int, str]]:
    """Return (line, name) of all that is imported; own modules start with `clearfunds.`.

    `module` is where the source stands below the package: `("accounts", "_account")`.
    """
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.append((node.lineno, node.module or ""))
        elif isinstance(node, ast.ImportFrom):
            base = ("clearfunds", *module)[: -node.level]
            if node.module is not None:
                found.append((node.lineno, ".".join((*base, node.module))))
            else:
                found += [(node.lineno, ".".join((*base, alias.name))) for alias in node.names]
    return found


def absolute_imports(tree: ast.AST) -> list[tuple[int, str]]:
    """Return (line, name) of the own modules that are imported by their full names."""
    found: list[tuple[int, str]] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        else:
            continue
        own = ("clearfunds", *LAYERS)
        found += [
            (node.lineno, name)
            for name in names
            if name.split(".")[0] in own and name not in CLIENTS
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
    rank = LAYERS.index(module[0])
    wrong: list[str] = []
    for line, name in imported(tree, module):
        parts = name.split(".")
        if parts[0] != "clearfunds":
            continue
        if module[0] == CLIENT:
            reads_books = module[:2] == BOOKS[0] and parts[1:2] == [BOOKS[1]]
            if not reads_books and (len(parts) == 1 or parts[1] not in CLIENT_IMPORTS):
                wrong.append(f"line {line}: {name}, and {CLIENT} is a client of the relay")
        elif module[0] in ALONE and parts[1:2] != [module[0]]:
            wrong.append(f"line {line}: {name}, and {module[0]} stands alone")
        elif len(parts) == 1 or parts[1] not in LAYERS:
            wrong.append(f"line {line}: {name} is above all layers")
        elif LAYERS.index(parts[1]) > rank:
            wrong.append(f"line {line}: {name} is above {module[0]}")
    return wrong


def across(tree: ast.AST, module: tuple[str, ...]) -> list[str]:
    """Say which imports of a module of transports/mqtt are of a folder that is none of its own."""
    room = module[2]
    return [
        f"line {line}: {name}, and {room} may import {OF_MQTT[room]}"
        for line, name in imported(tree, module)
        if name.startswith("clearfunds.transports.mqtt.")
        and name.split(".")[3] not in (room, *OF_MQTT[room])
    ]


def in_and_output(tree: ast.AST, path: str) -> list[str]:
    """Say what does I/O here."""
    wrong = [
        f"line {line}: import of {name}"
        for line, name in imported(tree, tuple(path.removesuffix(".py").split("/")))
        if name.split(".")[0] in IO_MODULES
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


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"), str(path))


def place(path: Path) -> tuple[str, ...]:
    return path.relative_to(ROOT).with_suffix("").parts


def label(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", SOURCES, ids=label)
def test_imports_point_one_way(path: Path) -> None:
    assert upward(parse(path), place(path)) == []


@pytest.mark.parametrize("room", OF_MQTT)
def test_the_folders_of_mqtt_import_one_way(room: str) -> None:
    paths = list((ROOT / "transports" / "mqtt" / room).rglob("*.py"))
    assert len(paths) > 5
    for path in paths:
        assert across(parse(path), place(path)) == []


@pytest.mark.parametrize("path", SOURCES, ids=label)
def test_own_code_is_imported_relatively(path: Path) -> None:
    assert absolute_imports(parse(path)) == []


@pytest.mark.parametrize("path", [p for p in SOURCES if place(p)[0] in NO_IO], ids=label)
def test_no_input_or_output(path: Path) -> None:
    assert in_and_output(parse(path), label(path)) == []


@pytest.mark.parametrize("path", [p for p in SOURCES if p.name == "__init__.py"], ids=label)
def test_exports_are_marked_as_such(path: Path) -> None:
    assert unmarked_exports(parse(path)) == []


@pytest.mark.parametrize("layer", LAYERS)
def test_every_folder_with_sources_is_a_package(layer: str) -> None:
    assert (ROOT / layer / "__init__.py").is_file()
    for path in (ROOT / layer).rglob("*.py"):
        assert (path.parent / "__init__.py").is_file()


def test_nothing_below_the_experiments_imports_them() -> None:
    below = [*SOURCES, *(ROOT / "src").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    for path in below:
        tree = ast.parse(path.read_text("utf-8"))
        names = [name for _, name in imported(tree, (path.stem,))]
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
        (("pipeline", "journal", "_a"), "from ...accounts import Ledger", 0),
        (("pipeline", "source", "_a"), "from clearfunds.range_client import RangeReader", 0),
        (("transports", "mqtt", "_a"), "from clearfunds.range_client import RangeReader", 1),
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
    assert len(across(ast.parse(source), module)) == wrong


@pytest.mark.parametrize(
    ("path", "source", "wrong"),
    [
        ("accounts/_a.py", "import socket", 1),
        ("accounts/_a.py", "import os.path", 1),
        ("accounts/_a.py", "from http import client", 1),
        ("accounts/_a.py", "import math, collections.abc", 0),
        ("accounts/_a.py", "open('x')", 1),
        ("accounts/_a.py", "ledger.open('x')", 0),
        ("accounts/_a.py", "import trio\ntrio.Event()\ntrio.lowlevel.ParkingLot()", 0),
        ("accounts/_a.py", "import trio\nawait_ = trio.socket.socket()", 1),
        ("accounts/_a.py", "import trio\ntrio.lowlevel.wait_readable(1)", 1),
        ("accounts/_a.py", "from trio import open_nursery", 1),
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


def test_the_check_of_relative_imports_finds_what_is_wrong() -> None:
    source = "import clearfunds.accounts\nfrom accounts import A\nfrom ..accounts import A\n"
    source += "import clearfunds.range_client as client"
    assert [line for line, _ in absolute_imports(ast.parse(source))] == [1, 2]
