"""Making text from others safe to print."""

from typing import Final

# Topics and client identifiers come from peers: they must not be able to start a new line, to
# control a terminal, or to make it show letters in another order.
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
    """Return `text` in one line, without characters that control a terminal."""
    return text.translate(_CONTROLS)


def printable_lines(text: str) -> str:
    """Return `text` without characters that control a terminal, except line ends and tabs."""
    return text.translate(_IN_LINES)
