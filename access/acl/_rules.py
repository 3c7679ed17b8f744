"""The rules of an access control list, in the format of mosquitto's `acl_file`.

    topic readwrite lobby/#             before the first user: for clients without a user name
    user anna
    topic read news/#
    topic deny news/drafts/#
    pattern readwrite users/%u/%c/#     for all clients: %u is the user's name, %c the identifier

A line's words are separated by spaces. A line whose topic contains no space may leave out `read`,
`write`, `readwrite` or `deny`; the access is then `readwrite`. Empty lines are skipped, and so are
lines that begin with #.

One difference from mosquitto: `topic read` alone, which mosquitto takes for a topic called "read",
is an error.

Source: mosquitto 2.0, mosquitto.conf(5) and src/security_default.c.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence
from typing import Final

import attrs

from ...dataspace import PatternError, TopicFilter

MAX_TOPIC_BYTES: Final = 65_535
"""The longest topic that MQTT can carry."""

_SHOWN: Final = 80
"""Characters of a line that an error shows."""

_PLACEHOLDER: Final = re.compile("%[uc]")


class AclFileError(ValueError):
    """An ACL file is invalid; the message gives the line, the fault, and the remedy."""


class Access(enum.IntFlag):
    """Permissions of a rule."""

    DENY = 0
    READ = 1
    WRITE = 2
    READWRITE = 3


_WORDS: Final = {
    "read": Access.READ,
    "write": Access.WRITE,
    "readwrite": Access.READWRITE,
    "deny": Access.DENY,
}
_ANY_WORD: Final = "read, write, readwrite or deny"


@attrs.frozen(slots=True)
class Rule:
    """One line: a permission, and its topic filter."""

    access: Access
    filter: str


@attrs.frozen(slots=True)
class AclRules:
    """All rules of a list."""

    users: Mapping[str | None, Sequence[Rule]] = attrs.field(factory=dict[str | None, "list[Rule]"])
    """The rules of each user; under None those of clients without a user name."""
    patterns: Sequence[Rule] = ()
    """The rules for everybody; their filters contain %u and %c."""

    def __len__(self) -> int:
        """Return the number of rules."""
        return sum(map(len, self.users.values())) + len(self.patterns)

    @property
    def by_client(self) -> bool:
        """Whether two clients of one user may have different rights."""
        return bool(self.patterns)

    def patterns_of(self, user: str | None, client: str) -> list[Rule] | None:
        """Return the patterns as rules for one client; None: it may do nothing that needs them.

        None is for a name with a wildcard: as part of a filter it would match more than the
        client's own topics. Patterns with %u do not apply to clients without a user name.
        """
        if self.patterns and any(sign in (user or "") + client for sign in "+#"):
            return None
        names = {"%c": client} if user is None else {"%c": client, "%u": user}
        return [
            Rule(rule.access, _PLACEHOLDER.sub(lambda found: names[found[0]], rule.filter))
            for rule in self.patterns
            if user is not None or "%u" not in rule.filter
        ]


def parse_acl(text: str, where: str = "") -> AclRules:
    """Parse rules from a text; errors begin with `where`, the place of the text.

    Raises:
        AclFileError: The text is invalid.
    """
    users: dict[str | None, list[Rule]] = {}
    patterns: list[Rule] = []
    user: str | None = None
    # Not splitlines(), which ends lines where mosquitto does not.
    for number, line in enumerate(text.split("\n"), 1):
        line = line.rstrip()
        if line.startswith("#") or not line.strip(" "):
            continue
        try:
            _check_text(line)
            word, _, rest = line.lstrip(" ").partition(" ")
            rest = rest.lstrip(" ")
            if word == "user":
                user = _user(rest)
            elif word == "topic":
                users.setdefault(user, []).append(_rule(word, rest))
            elif word == "pattern":
                patterns.append(_rule(word, rest))
            else:
                raise AclFileError(_strange(line))
        except AclFileError as error:
            raise AclFileError(f"{where}line {number}: {error}") from None
    return AclRules(users, patterns)


def _check_text(line: str) -> None:
    if any("\ud800" <= letter <= "\udfff" for letter in line):
        raise AclFileError("it is not in UTF-8, as MQTT's topics are; save the file in that")
    if "\0" in line:
        raise AclFileError("it has a NUL character, which no topic has; remove it")


def _strange(line: str) -> str:
    if line.lstrip().startswith("#"):
        return "a comment has # as the first character of its line; remove the blanks before it"
    if line.startswith("\ufeff"):
        return "the file begins with a byte order mark; save it without"
    if "\t" in line:
        return f"{_shown(line)} has a tab in it; separate words with spaces"
    return f"{_shown(line)} does not begin with user, topic or pattern; correct or remove it"


def _user(name: str) -> str:
    if not name:
        raise AclFileError("there is no name behind user; write one, or remove the line")
    return name


def _rule(word: str, rest: str) -> Rule:
    if not rest:
        raise AclFileError(f"there is no topic behind {word}; write one, or remove the line")
    first, space, topic = rest.partition(" ")
    topic = topic.lstrip(" ")
    if not space:
        if first in _WORDS:
            msg = (
                f"there is no topic behind {word} {first}; write one (for a topic with that "
                f"name: {word} readwrite {first})"
            )
            raise AclFileError(msg)
        topic, access = first, Access.READWRITE
    elif first in _WORDS:
        access = _WORDS[first]
    else:
        msg = (
            f"{_shown(first)} is not {_ANY_WORD}; if it is part of the topic, write one of these "
            "before it"
        )
        raise AclFileError(msg)
    _check_filter(topic)
    return Rule(access, topic)


def _check_filter(topic: str) -> None:
    try:
        TopicFilter(topic)
    except PatternError as error:
        msg = f"{_shown(str(error))}; correct the topic"
        raise AclFileError(msg) from None
    if len(topic.encode()) > MAX_TOPIC_BYTES:
        msg = f"its topic has more than {MAX_TOPIC_BYTES} bytes, which MQTT cannot carry; remove it"
        raise AclFileError(msg)


def _shown(text: str) -> str:
    return ascii(text[:_SHOWN])
