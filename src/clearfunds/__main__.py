"""`python -m clearfunds`, and the `clearfunds` command."""

import importlib.util
import signal
import sys
from typing import NoReturn

_NEEDED = ("cyclopts", "h11", "preserves", "rich", "wsproto")
# The packages of the extra `relay`: the library itself does without.


def main() -> NoReturn:
    """Run the command line, and exit with its status: 2 after a usage error."""
    if not all(importlib.util.find_spec(name) for name in _NEEDED):
        sys.exit(
            _say('the command line needs more than the library: pip install "clearfunds[relay]"')
        )
    is_relay = sys.argv[1:2] == ["relay"]
    if is_relay:
        # As early as can be: the rest of its start takes half a second.
        signal.signal(signal.SIGHUP, _go_on)
    from ._cli import run

    try:
        sys.exit(run(sys.argv[1:]))
    finally:
        if is_relay:
            # No functions are called any more when the interpreter ends, and SIGHUP would kill it.
            signal.signal(signal.SIGHUP, signal.SIG_IGN)


def _go_on(*_: object) -> None:
    """Handle SIGHUP before a relay listens for it, and after. (`SIG_IGN` would be inherited.)"""


def _say(sentence: str) -> int:
    print(f"clearfunds: {sentence}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    main()
