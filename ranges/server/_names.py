"""Names of subscriptions and of writers, each user's apart from all others'.

Where peers authenticate, each user has its own names: `alice`'s `readings` is stored as
`@alice/readings`, and `bob`'s as `@bob/readings`. So nobody can reach another user's subscription,
by whatever name, and the owner of a name is still known after a restart. Where nobody
authenticates, names are stored unchanged. The two kinds cannot be confused: in a user's name `%`,
`/` and unprintable characters are written as `%XX`, and an unowned name cannot begin with `@`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import quote, unquote

from ...access._tenants import NO_USER, Peer, printable
from ...transports._settings import DEFAULT_NAMES_EACH

OWNED: Final = "@"
"""Prefix of names that belong to a user."""


def key_of(owner: str | None, name: str) -> str:
    """Return the key under which a name is stored.

    Args:
        owner: The owner of the name; None: the relay does not know its peers.
        name: The owner's name for it.
    """
    return name if owner is None else f"{prefix_of(owner)}{name}"


def prefix_of(owner: str) -> str:
    """Return the common prefix of a user's keys, which no other key has."""
    return f"{OWNED}{_escaped(owner)}/"


def _escaped(user: str) -> str:
    return "".join(
        quote(letter, safe="", errors="surrogatepass") if _is_special(letter) else letter
        for letter in user
    )


def _is_special(letter: str) -> bool:
    return letter in "%/" or not letter.isprintable()


def owner_of(key: str) -> tuple[str, str]:
    """Return a key's owner (`NO_USER`: nobody), and the owner's name for it."""
    found = re.fullmatch(f"{OWNED}([^/]+)/(.*)", key, re.DOTALL)
    if found is None:
        return NO_USER, key
    return unquote(found[1], errors="surrogatepass"), found[2]


def peer_of(key: str) -> Peer:
    """Return a key's user as a peer, to look up its tenant and rights.

    It has no listener: that is not known after a restart.
    """
    user, name = owner_of(key)
    return Peer("", printable(user), name)


class Names:
    """Finds the keys of names.

    Args:
        what: The kind of thing that has the names, for sentences: `subscription`, `writer`.
        heir: The user that owns the names made without authentication; None: nobody does.
        most: Most names of one user.
        known: Returns all existing keys.
    """

    def __init__(
        self, what: str, heir: str | None, most: int, known: Callable[[], Iterable[str]]
    ) -> None:
        self._what = what
        self._heir = heir
        self._most = most
        self._known = known

    def find(self, owner: str | None, name: str) -> tuple[str, str | None]:
        """Return the key of a name, and why it may not be made or reached, if that is so.

        Args:
            owner: The user who asks; None: the relay does not know its peers.
            name: The owner's name for it.
        """
        key = key_of(owner, name)
        if owner is None:
            return key, self._fault_of_nobodys(name)
        known = set(self._known())
        if key in known:
            return key, None
        if name in known and not name.startswith(OWNED):
            if owner == self._heir:
                return name, None
            return key, (
                f"{self._what} {name!r} was made before this relay authenticated its peers, "
                "and has no owner: the relay's operator can give it to a user (--range-owner USER)"
            )
        prefix = prefix_of(owner)
        if sum(each.startswith(prefix) for each in known) >= self._most:
            return key, (
                f"user {owner} has {self._most} of these names, the most for each user "
                f"(--max-range-names): drop a {self._what} that is no longer needed"
            )
        return key, None

    def _fault_of_nobodys(self, name: str) -> str | None:
        if not name.startswith(OWNED):
            return None
        return (
            f"{self._what} {name!r}: a name may not begin with {OWNED}: such names belong to users"
            " (--passwords)"
        )


def any_names(what: str, known: Callable[[], Iterable[str]]) -> Names:
    """Make a `Names` without an heir, with the default number of names for each user."""
    return Names(what, None, DEFAULT_NAMES_EACH, known)
