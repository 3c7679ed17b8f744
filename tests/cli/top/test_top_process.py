"""`clearfunds top` as a process, beside a real relay in which a real publisher is held up."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import struct
import subprocess
import termios
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests import forks
from tests.cli.conftest import SECONDS
from tests.cli.peers import connect, publish_until_it_waits, subscribe_to_all
from tests.ports import lasting_port

if TYPE_CHECKING:
    from tests.cli.conftest import RelayUnderTest

    StartRelay = Callable[..., RelayUnderTest]
    Clearfunds = Callable[..., subprocess.CompletedProcess[str]]

RELAY = (
    *("--listen", "mqtt+tcp://127.0.0.1:0", "--limit-items", "1000", "--patience", "600"),
    *("--grace", "0"),
)


def started(start_relay: StartRelay, http: str = "127.0.0.1:0") -> tuple[RelayUnderTest, int, str]:
    """Return a relay, the port of its MQTT and the URL of its pages."""
    relay = start_relay(*RELAY, "--http", http)
    listening, pages = relay.ready()
    return relay, int(listening["listening"].rpartition(":")[2]), pages["http"]


@contextmanager
def stall(port: int) -> Generator[None]:
    """Let a publisher wait for a subscriber that takes nothing."""
    with connect(port, b"stk") as stuck, connect(port, b"pub") as publisher:
        subscribe_to_all(stuck)
        publish_until_it_waits(publisher)
        yield


SENTENCE = re.compile(
    r"mqtt:\d+/-/pub waits for mqtt:\d+/-/stk, for \d+\.\d s: it owes 1,\d{3} of 1,000 items; "
    r"outlet mqtt:\d+/-/stk holds 1,\d{3} items and has made no progress for \d+\.\d s; "
    r"it is cut off in (9 min \d+ s|10 min) unless it reads, "
    r"and mqtt:\d+/-/pub goes on then\."
    r"( stk's program does not read \(window shut \d+ % of \d+(\.\d)? s\)\.)?"
)


@pytest.mark.usefixtures("as_a_user")
def test_once_names_the_culprit_first(start_relay: StartRelay, clearfunds: Clearfunds) -> None:
    _, port, url = started(start_relay)
    with stall(port):
        run = clearfunds("top", url, "--once")
        # Nothing is coloured or cut where no terminal is, whatever the environment wants.
        forced = clearfunds(
            *("top", url, "--once"),
            env={**os.environ, "FORCE_COLOR": "1", "COLUMNS": "20", "PYTHONIOENCODING": "ascii"},
        )
    assert (run.returncode, run.stderr) == (0, "")
    lines = run.stdout.splitlines()
    assert SENTENCE.fullmatch(lines[0]), lines[0]
    assert lines[1].startswith(f"{url} at ")
    assert re.search(r": \d accounts, 1,\d{3} items, ", lines[1])
    assert "1 reader waits" in lines[1]
    for title in ("Who waits on whom", "Who owes", "Who holds"):
        assert title in run.stdout
    assert forced.returncode == 0
    assert SENTENCE.fullmatch(forced.stdout.splitlines()[0])
    assert forced.stdout.isascii()
    assert "\x1b" not in run.stdout + forced.stdout


def test_json_is_a_document_for_each_look(start_relay: StartRelay, clearfunds: Clearfunds) -> None:
    _, port, url = started(start_relay)
    with stall(port):
        run = clearfunds("top", url, "--once", "--json", "--limit", "1", "--sort", "held")
        with forks.start(
            *("top", url, "--json", "--interval", "0.1"),
            stdout=subprocess.PIPE,
            text=True,
        ) as looking:
            assert looking.stdout is not None
            pages = [json.loads(looking.stdout.readline()) for _ in range(3)]
            looking.send_signal(signal.SIGTERM)
            assert looking.wait(SECONDS) == 0
    assert (run.returncode, run.stderr) == (0, "")
    (text,) = run.stdout.splitlines()
    page = json.loads(text)
    (wait,) = page["waits"]
    assert wait["on"][0]["name"].endswith("/stk")
    assert len(page["accounts"]) == len(page["holders"]) == 1
    assert page["more"]["accounts"] >= 1  # the relay may have some of its own
    assert [page["waits"][0]["on"][0]["name"] for page in pages] == [wait["on"][0]["name"]] * 3
    assert pages[0]["time"] < pages[1]["time"] < pages[2]["time"]


@pytest.mark.usefixtures("as_a_user")
def test_piped_it_goes_on_in_blocks(start_relay: StartRelay) -> None:
    _, _, url = started(start_relay)
    with forks.start(
        *("top", url, "--interval", "0.1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as looking:
        assert looking.stdout is not None
        assert looking.stderr is not None
        seen = 0
        while seen < 3:
            seen += looking.stdout.readline() == "Nobody waits.\n"
        looking.send_signal(signal.SIGINT)
        rest, errors = looking.communicate(timeout=SECONDS)
        assert (looking.returncode, errors) == (0, "")
        assert "\x1b" not in rest


@pytest.mark.parametrize("options", [[], ["--once"], ["--json"]])
def test_a_relay_that_is_not_there_is_one_line(clearfunds: Clearfunds, options: list[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # and does not listen
        url = f"127.0.0.1:{taken.getsockname()[1]}"
        run = clearfunds("top", url, *options)
    assert run.returncode == 1
    assert run.stdout == ""
    assert run.stderr.count("\n") == 1
    assert f"cannot reach http://{url}" in run.stderr
    assert "--http" in run.stderr


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\nno \x1b[2J!\n", r"404: no \x1b[2J!"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "not a page of a relay"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[}", "not JSON"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\n\r\n{}", "breaks off"),
        (b"SSH-2.0-OpenSSH\r\n", "breaks off"),
        (b"", "breaks off"),
    ],
)
def test_what_is_no_relay_is_one_line(complaint: Clearfunds, answer: bytes, said: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        run = complaint("top", f"127.0.0.1:{server.getsockname()[1]}", "--once")
        thread.join()
    assert run.returncode == 1
    assert run.stdout == ""
    assert run.stderr.count("\n") == 1
    assert said in run.stderr


@pytest.mark.parametrize(
    "options",
    [
        *(["ftp://here"], ["http://here/metrics"], ["127.0.0.1:x"], ["http://u@here"]),
        *(["--limit", "0"], ["--limit", "101"], ["--sort", "name"], ["--interval", "-1"]),
    ],
)
def test_a_wrong_call_is_one_line(complaint: Clearfunds, options: list[str]) -> None:
    run = complaint("top", *options)
    assert (run.returncode, run.stdout) == (2, "")
    assert run.stderr.count("\n") == 1


# -- in a terminal --------------------------------------------------------------------------------

OUT_OF_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """`clearfunds top` in a terminal of its own."""

    def __init__(self, *options: str) -> None:
        self.master, slave = pty.openpty()
        self.text = ""
        self.left = b""
        self.resize(24, 100, to=slave)
        environment = {**os.environ, "TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environment.pop(name, None)
        self.process = forks.start(
            *("top", *options),
            stdin=slave,
            stdout=slave,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        os.close(slave)

    def resize(self, rows: int, columns: int, *, to: int | None = None) -> None:
        size = struct.pack("HHHH", rows, columns, 0, 0)
        fcntl.ioctl(self.master if to is None else to, termios.TIOCSWINSZ, size)

    def press(self, keys: str) -> None:
        """Press some keys, one after the other."""
        os.write(self.master, keys.encode())

    def shows_keys(self) -> bool:
        """Whether the terminal shows what is typed, and gives it in whole lines."""
        return bool(termios.tcgetattr(self.master)[3] & (termios.ECHO | termios.ICANON))

    def read_until(self, pattern: str) -> str:
        """Return what comes on the screen up to the first match, without colours."""
        deadline = time.monotonic() + SECONDS
        while True:
            plain = OUT_OF_COLOURS.sub("", self.text)
            if re.search(pattern, plain, re.DOTALL):
                self.text = ""
                return plain
            left = deadline - time.monotonic()
            assert left > 0, f"{pattern} does not come, but: {plain[-2000:]}"
            if select.select([self.master], [], [], left)[0]:
                try:
                    self.text += os.read(self.master, 65536).decode("utf-8", "replace")
                except OSError:  # the other side is closed
                    pytest.fail(f"it has ended: {plain[-2000:]}")

    def end(self, number: signal.Signals | None) -> tuple[int, str]:
        """Return its exit status and what it has on stderr, after a signal or by itself."""
        if number is not None:
            self.process.send_signal(number)
        deadline = time.monotonic() + SECONDS
        # What it draws has to be read, or it could not finish.
        while self.process.poll() is None and time.monotonic() < deadline:
            if select.select([self.master], [], [], 0.05)[0]:
                try:
                    self.left += os.read(self.master, 65536)
                except OSError:  # the other side is closed
                    break
        _, errors = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, errors

    def rest(self) -> str:
        """Return what is left of its output."""
        text = self.left
        try:
            while piece := os.read(self.master, 65536):
                text += piece
        except OSError:
            pass
        return text.decode("utf-8", "replace")


@contextmanager
def terminal(*options: str) -> Generator[Terminal]:
    screen = Terminal(*options)
    try:
        yield screen
    finally:
        screen.process.kill()
        screen.process.communicate()
        os.close(screen.master)


@pytest.mark.usefixtures("as_a_user")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_live_until_a_signal(start_relay: StartRelay, number: signal.Signals) -> None:
    _, port, url = started(start_relay)
    with terminal(url, "--interval", "0.2") as top:
        top.read_until(r"Nobody waits\.")
        with stall(port):
            # The sentence is folded at 100 columns.
            shown = top.read_until(r"-/pub waits for .*/-/stk, for .*Who waits on whom.*Who holds")
            # What has been read may end within a sequence of the terminal.
            assert "\x1b" not in re.sub(r"\x1b\[?[\d;?]*$", "", shown)
            top.resize(24, 70)
            top.process.send_signal(signal.SIGWINCH)
            top.read_until(r"─\r?\n?.*-/stk")
            status, errors = top.end(number)
        assert (status, errors) == (0, "")
        # The screen that was there before is there again, with its cursor.
        rest = top.rest()
        assert "\x1b[?1049l" in rest
        assert "\x1b[?25h" in rest


def test_keys_sort_find_explain_and_quit(start_relay: StartRelay) -> None:
    _, port, url = started(start_relay)
    with terminal(url, "--interval", "0.2") as top, stall(port):
        top.read_until(r"\? help, q quit; those that wait longest first, then by debt.*Who owes")
        assert not top.shows_keys()
        top.press("s")
        top.read_until(r"q quit; by debt.*Who owes.*Who holds")
        top.press("ss")
        # Holders come first then.
        top.read_until(r"q quit; holders first, by what they hold.*Who holds.*Who owes")
        top.press("S")
        top.read_until(r"q quit; by how long they have waited, now and before")
        # What is typed is shown, may be corrected, and selects rows by name.
        top.press("/pux\x7f")
        top.read_until(r"Find: pu█")
        top.press("B\r")
        # From the next page on: the one that is there has all names.
        without = r"((?!/-/stk).)*"
        top.read_until(
            rf'names with "puB".*Who owes{without}/-/pub{without}Who holds{without}/-/pub waits for'
        )
        # A key of it is none: q is a letter of a name.
        top.press("/q\x1b")
        top.read_until(r"Find: puBq")
        top.read_until(r'help, q quit; [^;]*; names with "puB"')
        top.press("\x1b")
        top.read_until(r"Who holds.*/-/stk")
        # Arrows and such do nothing.
        top.press("\x1b[A\x1bOB?")
        words = top.read_until(r"Keys.*Words, and the usual ones.*no progress")
        assert "high-water mark" in words
        top.press(" ")
        top.read_until(r"Who owes")
        top.press("q")
        assert top.end(None) == (0, "")
        rest = top.rest()
        assert "\x1b[?1049l" in rest
        assert "\x1b[?25h" in rest
        assert top.shows_keys()


def test_find_is_an_option_too(start_relay: StartRelay, clearfunds: Clearfunds) -> None:
    _, port, url = started(start_relay)
    with stall(port):
        run = clearfunds("top", url, "--once", "--find", "STK")
    assert (run.returncode, run.stderr) == (0, "")
    # Who waits is said whatever is looked for.
    assert SENTENCE.fullmatch(run.stdout.splitlines()[0])
    assert 'names with "STK"' in run.stdout
    owes, _, holds = run.stdout.partition("Who owes")[2].partition("Who holds")
    assert "/-/pub" not in owes
    assert "/-/stk" in holds


def test_live_a_relay_goes_and_comes_back(start_relay: StartRelay) -> None:
    pages = f"127.0.0.1:{lasting_port()}"
    relay, _, url = started(start_relay, pages)
    with terminal(url, "--interval", "0.2") as top:
        top.read_until(r"Nobody waits\.")
        relay.process.terminate()
        assert relay.wait() == 0
        # What was seen last stays there, with its age.
        gone = r"cannot reach http://.*trying again; what is below is \d+\s+s\s+old.*Nobody waits\."
        top.read_until(gone)
        started(start_relay, pages)
        # What was drawn while it was gone comes first, however often that was.
        deadline = time.monotonic() + SECONDS
        while "trying again" in top.read_until(r"Nobody waits\..*Who holds"):
            assert time.monotonic() < deadline
        assert top.end(signal.SIGINT) == (0, "")


def test_piped_a_relay_goes_and_comes_back(start_relay: StartRelay) -> None:
    pages = f"127.0.0.1:{lasting_port()}"
    relay, _, url = started(start_relay, pages)
    with forks.start(
        *("top", url, "--json", "--interval", "0.1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as looking:
        assert looking.stdout is not None
        assert looking.stderr is not None
        assert json.loads(looking.stdout.readline())["waits"] == []
        relay.process.terminate()
        assert relay.wait() == 0
        gone = looking.stderr.readline()
        assert "cannot reach" in gone
        assert "trying again" in gone
        time.sleep(0.5)  # it looks again several times, and says so once
        started(start_relay, pages)
        assert looking.stderr.readline() == f"clearfunds top: {url} answers again\n"
        looking.send_signal(signal.SIGINT)
        _, errors = looking.communicate(timeout=SECONDS)
        assert (looking.returncode, errors) == (0, "")
