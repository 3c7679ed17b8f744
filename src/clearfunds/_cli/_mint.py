"""`clearfunds mint`: sturdyrefs, which open a relay's gatekeeper to everybody who has one."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Group, Parameter

from clearfunds.transports import ProtocolError, RemoteProtocolError
from clearfunds.transports.syndicate import (
    DEFAULT_MAX_DEPTH,
    Refusal,
    SturdyRef,
    attenuated_sturdyref,
    compile_caveats,
    parse_sturdyref,
)
from clearfunds.transports.syndicate import (
    mint as make_sturdyref,
)
from clearfunds.transports.syndicate._preserves import Value, decode_text, encode_text
from clearfunds.transports.syndicate._scan_text import TextScanner

from ._errors import UsageError
from ._key_file import random_key, read_key, write_key
from ._relay_options import DEFAULTS

_MAKING: Final = Group("New sturdyref", sort_key=1)
_LESSENING: Final = Group("Attenuated sturdyref", sort_key=2)

# Larger than any reference; a file given by mistake is not read to its end.
_MAX_TEXT_SIZE: Final = 1 << 20

# Characters of a mistaken caveat in an error message, which stays one line.
_MAX_SHOWN: Final = 80


def mint(
    *,
    key_file: Annotated[
        Path | None,
        Parameter(
            group=_MAKING,
            help="Key file, in hex: the relay's --sturdy-key-file.",
        ),
    ] = None,
    new_key: Annotated[
        bool,
        Parameter(
            group=_MAKING,
            negative=(),
            show_default=False,
            help="Create the key file, with a random key; it must not exist yet.",
        ),
    ] = False,
    oid: Annotated[
        str | None,
        Parameter(
            group=_MAKING,
            help="Name (oid) of the service, a plain string: the relay's --sturdy-oid [default: "
            f"{DEFAULTS.sturdy_oid}].",
        ),
    ] = None,
    attenuate: Annotated[
        str | None,
        Parameter(
            group=_LESSENING,
            allow_leading_hyphen=True,
            help="Sturdyref to add caveats to, which needs no key; -: read it from stdin.",
        ),
    ] = None,
    caveat: Annotated[
        tuple[str, ...],
        Parameter(
            group=_LESSENING,
            negative=(),
            show_default=False,
            help="Caveat, a restriction in Preserves text: `<reject PATTERN>`, `<rewrite PATTERN "
            "TEMPLATE>`, `<or [<rewrite ...> ...]>`. Repeatable; the last is applied first.",
        ),
    ] = (),
) -> int:
    """Print a sturdyref, the capability that admits a client at a relay's gatekeeper.

    It is one line of Preserves text: `<ref {oid: "syndicate" sig: #x"..."}>`. Anybody who has it
    has its rights, so it must be kept like a password, and can make another one with fewer rights.

    Make a key and an unrestricted sturdyref:
    `clearfunds mint --key-file relay.key --new-key`

    Make one that sends and asserts no `<Secret what>`:
    `clearfunds mint --key-file relay.key --caveat '<reject <rec Secret [<_>]>>'`
    """
    caveats = [_read_caveat(text) for text in caveat]
    if attenuate is not None:
        if key_file is not None or new_key or oid is not None:
            msg = "--attenuate takes no --key-file, --new-key or --oid: REF has its oid already"
            raise UsageError(msg)
        if not caveats:
            msg = "--attenuate adds caveats: give at least one --caveat"
            raise UsageError(msg)
        ref = _attenuated(_read_reference(attenuate), caveats)
    elif key_file is None:
        msg = "give --key-file FILE (and --new-key to make a key), or --attenuate REF"
        raise UsageError(msg)
    else:
        ref = _made(DEFAULTS.sturdy_oid if oid is None else oid, key_file, new_key, caveats)
    for compiled in compile_caveats(ref.caveats):
        if isinstance(compiled, Refusal):
            _warn(f"a relay lets nothing through for this reference: {compiled.reason}")
    print(_written(ref))
    return 0


def _made(oid: str, file: Path, new: bool, caveats: Sequence[Value]) -> SturdyRef:
    key = random_key() if new else read_key(file, _warn)
    # First the reference: an invalid caveat must not leave a key behind.
    try:
        ref = make_sturdyref(oid, key)
    except ProtocolError as error:
        msg = f"--oid: {error}"
        raise UsageError(msg) from error
    ref = _attenuated(ref, caveats)
    if new:
        write_key(file, key)
    return ref


def _attenuated(ref: SturdyRef, caveats: Sequence[Value]) -> SturdyRef:
    for caveat in caveats:
        try:
            ref = attenuated_sturdyref(ref, [caveat])
        except ProtocolError as error:
            msg = f"--caveat {_short(encode_text(caveat))}: {error}"
            raise UsageError(msg) from error
    return ref


def _read_caveat(text: str) -> Value:
    try:
        return _read(text)
    except ProtocolError as error:
        msg = f"--caveat {_short(text)}: {error}"
        raise UsageError(msg) from error


def _read_reference(text: str) -> SturdyRef:
    try:
        if text == "-":
            text = sys.stdin.read(_MAX_TEXT_SIZE)
        return parse_sturdyref(_read(text))
    except (ProtocolError, UnicodeDecodeError) as error:
        # It is not shown: it may be a reference all but for a letter.
        msg = f"--attenuate: {error}"
        raise UsageError(msg) from error


def _read(text: str) -> Value:
    """Read one value, no deeper than relays accept: code that walks over values is recursive."""
    scanner = TextScanner(max_text_size=_MAX_TEXT_SIZE, max_depth=DEFAULT_MAX_DEPTH)
    text = text.strip()
    # A newline ends an atom.
    if scanner.find_end(f"{text}\n".encode(errors="replace"), 0) is None:
        msg = "the text ends in the middle of a value"
        raise RemoteProtocolError(msg)
    return decode_text(text)


def _written(ref: SturdyRef) -> str:
    """Write a reference with its signature in hex, which survives more copying than base64."""
    oid, caveats = encode_text(ref.oid), encode_text(ref.caveats)
    more = f" caveats: {caveats}" if ref.caveats else ""
    return f'<ref {{oid: {oid} sig: #x"{ref.sig.hex()}"{more}}}>'


def _short(text: str) -> str:
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}..."


def _warn(sentence: str) -> None:
    print(f"clearfunds mint: {sentence}", file=sys.stderr)
