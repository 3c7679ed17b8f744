"""Text of others, made fit to be shown."""

from typing import Final

# What a peer sends may stand in what we print (a topic, a client id): it must not be able to start
# a line of its own, to drive somebody's terminal, or to have it show letters in another order.
_CONTROLS: Final = (
    {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))}
    | {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}
    | {
        code: f"\\u{code:04x}"
        for code in (0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A))
    }
)
_IN_LINES: Final = {code: text for code, text in _CONTROLS.items() if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """Return `text` in one line, with nothing in it that a terminal would obey."""
    return text.translate(_CONTROLS)


def printable_lines(text: str) -> str:
    """Return `text` with nothing in it that a terminal would obey, but ends of lines and tabs."""
    return text.translate(_IN_LINES)
