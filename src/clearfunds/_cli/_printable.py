"""Text of others, made fit to be shown."""

from typing import Final

# What a peer sends may stand in what we print (a topic, a client id): it must not be able to start
# a line of its own, or to drive somebody's terminal.
_CONTROLS: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {
    ord("\n"): "\\n",
    ord("\r"): "\\r",
    ord("\t"): "\\t",
    0x2028: "\\u2028",
    0x2029: "\\u2029",
}


def printable(text: str) -> str:
    """Return `text` in one line, with nothing in it that a terminal would obey."""
    return text.translate(_CONTROLS)
