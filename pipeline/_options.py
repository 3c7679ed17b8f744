"""Spark's options: strings whose names ignore case, all checked before the relay is asked.

An invalid option raises an `OptionError` that names the option and says which values it takes.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from ..ranges.client import PLAIN_URL, TLS_URL, Access, parse_url
from ._errors import OptionError

_TRUE = ("true", "1", "yes", "on")
_FALSE = ("false", "0", "no", "off")
_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30,
          "gb": 1 << 30}  # fmt: skip
"""Units as in Spark's own sizes: `64m` is 64 MiB."""

_TIMES = {"": 0.001, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}
"""Units of time as in Spark's own durations."""

ADDRESS = (
    "url", "relay", "host", "port", "timeoutSeconds", "user", "password", "tls", "ca",
    "certificate", "key",
)  # fmt: skip
"""Options for the relay's address and the user's credentials, for reading and writing."""


class Options:
    """The options of a user, by name.

    Args:
        given: Names and strings, as Spark passes them.
        known: All valid names, spelled as in the documentation.

    Raises:
        OptionError: If a name is unknown.
    """

    def __init__(self, given: Mapping[str, str], known: Iterable[str]) -> None:
        spelled = {name.lower(): name for name in known}
        self._given = {name.lower(): str(text) for name, text in given.items()}
        for name in self._given:
            if name not in spelled:
                near = difflib.get_close_matches(name, spelled, 1)
                hint = f"; did you mean {spelled[near[0]]!r}?" if near else "."
                there = ", ".join(sorted(spelled.values()))
                raise OptionError(f"there is no option {name!r} here{hint} There are: {there}")

    def has(self, name: str) -> bool:
        """Return whether the option was given."""
        return name.lower() in self._given

    def text(self, name: str) -> str | None:
        """Return an option's string, or None if it was not given."""
        return self._given.get(name.lower())

    def required(self, name: str, what: str) -> str:
        """Return the string of an option that must be given.

        Raises:
            OptionError: If it is missing or empty.
        """
        text = self.text(name)
        if not text:
            raise OptionError(f"the option {name!r} is missing: {what}")
        return text

    def boolean(self, name: str, default: bool) -> bool:
        """Return an option that is true or false."""
        text = self.text(name)
        if text is None:
            return default
        if text.lower() in _TRUE:
            return True
        if text.lower() in _FALSE:
            return False
        raise _wrong(name, text, "true or false")

    def integer(self, name: str, least: int = 1, most: int | None = None) -> int | None:
        """Return a whole number, or None if the option was not given."""
        text = self.text(name)
        if text is None:
            return None
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            upto = "on" if most is None else f"to {most}"
            raise _wrong(name, text, f"a whole number from {least} {upto}")
        return number

    def size(self, name: str) -> int | None:
        """Return a number of bytes, or None if the option was not given."""
        text = self.text(name)
        if text is None:
            return None
        match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
        unit = None if match is None else _UNITS.get(match[2])
        if match is None or unit is None or not int(match[1]):
            raise _wrong(name, text, "a number of bytes from 1 on, as 1048576, 64k, 16m or 1g")
        return int(match[1]) * unit

    def seconds(self, name: str, least: float = 0.0) -> float | None:
        """Return a time in seconds, or None if the option was not given."""
        text = self.text(name)
        if text is None:
            return None
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not least <= number < float("inf"):
            raise _wrong(name, text, f"a number of seconds from {least:g} on")
        return number

    def duration(self, name: str) -> float | None:
        """Return a time in seconds, given as `15m` or `30s`; None if the option was not given.

        As for Spark's Kafka source, a number alone is in milliseconds.
        """
        text = self.text(name)
        if text is None:
            return None
        match = re.fullmatch(r"(\d+)\s*([a-z]*)", text.strip().lower())
        if match is None or match[2] not in _TIMES or not int(match[1]):
            raise _wrong(name, text, "a time, as 15m, 30s or 500ms")
        return int(match[1]) * _TIMES[match[2]]

    def one_of(self, name: str, choices: Mapping[str, str], default: str) -> str:
        """Return the value in `choices` of the word given."""
        text = self.text(name)
        if text is None:
            return default
        for word, meaning in choices.items():
            if text.lower() == word.lower():
                return meaning
        raise _wrong(name, text, " or ".join(map(repr, choices)))

    def names(self, name: str) -> tuple[str, ...]:
        """Return a list: comma-separated, or in JSON if entries contain commas."""
        text = self.text(name)
        if text is None:
            return ()
        entries: list[Any] = text.split(",")
        if text.lstrip().startswith("["):
            try:
                entries = json.loads(text)
            except ValueError:
                entries = []
        stripped = tuple(each.strip() for each in entries if isinstance(each, str))
        if stripped and all(stripped) and len(stripped) == len(entries):
            return stripped
        raise _wrong(name, text, 'names separated by commas, or a list of JSON\'s as ["a,b"]')

    def address(self) -> tuple[str, int, bool]:
        """Return the relay's host and port, and whether to use TLS.

        They come from the option `url`, or `relay`, which is the same, or from `host` and `port`.
        """
        name = "url" if self.has("url") else "relay"
        text = self.text(name)
        tls = self.boolean("tls", False)
        if text is None:
            port = self.integer("port", 1, 65_535)
            if port is None:
                raise OptionError(
                    "where is the relay? Give the option 'url' as HOST:PORT, or 'host' and "
                    "'port': those of its listener 'subscribe+tcp' or 'subscribe+tls'"
                )
            return self.text("host") or "127.0.0.1", port, tls
        if self.has("url") and self.has("relay"):
            raise OptionError("the options 'url' and 'relay' are the same: give one of them")
        if self.has("host") or self.has("port"):
            raise OptionError(f"give the option {name!r}, or 'host' and 'port', not both")
        scheme = TLS_URL if tls else PLAIN_URL
        try:
            host, found, secure = parse_url(text if "://" in text else f"{scheme}://{text}")
        except ValueError:
            example = f"{PLAIN_URL}://[::1]:7700 or {TLS_URL}://relay.example:7701"
            raise _wrong(name, text, f"HOST:PORT, as 127.0.0.1:7700, {example}") from None
        if self.has("tls") and tls != secure:
            raise OptionError(f"the option {name!r} is {text!r}, and 'tls' says otherwise")
        return host, found, secure

    def reach(self) -> tuple[str, int, Access]:
        """Return the relay's host and port, and the credentials for it.

        Raises:
            OptionError: If an option is missing, or contradicts another.
        """
        host, port, tls = self.address()
        try:
            access = Access(
                user=self.text("user"),
                password=self.text("password"),
                tls=tls,
                ca=self.text("ca"),
                certificate=self.text("certificate"),
                key=self.text("key"),
            )
            return access.reach(host, port)
        except ValueError as exc:
            names = "'user', 'password', 'tls', 'ca', 'certificate', 'key'"
            raise OptionError(f"the options {names}: {exc}") from exc


def _wrong(name: str, text: str, what: str) -> OptionError:
    return OptionError(f"the option {name!r} is {what}, not {text!r}")
