"""The keys of a terminal, while a screen is shown."""

from __future__ import annotations

import codecs
import os
import sys
import termios
import tty
from collections.abc import AsyncGenerator, Generator
from contextlib import contextmanager
from typing import Final

import trio

ENTER: Final = "enter"
ESCAPE: Final = "escape"
BACKSPACE: Final = "backspace"
CLEAR: Final = "clear"

_NAMED: Final = {
    "\r": ENTER,
    "\n": ENTER,
    "\x1b": ESCAPE,
    "\x7f": BACKSPACE,
    "\x08": BACKSPACE,
    "\x15": CLEAR,  # Ctrl-U.
}

_CHUNK: Final = 4096


def keys_in(text: str) -> list[str]:
    """Return the keys in what a terminal sends at once: characters, or the names above.

    Sequences of other keys (arrows, function keys) begin with an Escape and are left out, and so
    are other control characters.
    """
    found: list[str] = []
    place = 0
    while place < len(text):
        here = text[place]
        place += 1
        if here == "\x1b" and text[place : place + 1] in ("[", "O"):
            # A sequence ends with a letter or a tilde [ECMA-48, 5.4].
            place += 1
            while place < len(text) and not "@" <= text[place] <= "~":
                place += 1
            place += 1
        elif here in _NAMED:
            found.append(_NAMED[here])
        elif here.isprintable():
            found.append(here)
    return found


@contextmanager
def each_key_at_once() -> Generator[int | None]:
    """Have stdin give each key as it is pressed, without showing it; then as it was before.

    Yields its descriptor; None if stdin is no terminal.
    """
    if sys.stdin is None or not sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison]
        yield None
        return
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor)
    try:
        yield descriptor
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


async def read_keys(descriptor: int) -> AsyncGenerator[str]:
    """Yield each key, until the terminal is gone.

    On cancellation no key that was read is lost but those that came together with the last one.
    """
    decoder = codecs.getincrementaldecoder("utf-8")("ignore")
    while True:
        await trio.lowlevel.wait_readable(descriptor)
        data = os.read(descriptor, _CHUNK)
        if not data:
            return
        for key in keys_in(decoder.decode(data)):
            yield key
