"""Names of subscriptions and of writers, each user's apart from all others'.

Where the relay knows who its peers are, a name is its user's own: what `alice` calls `readings` is
kept as `@alice/readings`, and what `bob` calls so as `@bob/readings`. So nobody can reach what is
another user's, by whatever name, and who a name belongs to is known after a restart, too. Where
nobody is known, names are kept as they are. Neither kind can look like the other: in a user's name
`%`, `/` and what cannot be printed are written as `%XX`, and no name of nobody's begins with `@`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Final
from urllib.parse import quote, unquote

from .._settings import DEFAULT_NAMES_EACH
from .._tenants import NO_USER, Peer, printable

OWNED: Final = "@"
"""What names begin with that belong to a user."""


def key_of(owner: str | None, name: str) -> str:
    """Return under what a name is kept.

    Args:
        owner: Whose name it is; None: the relay does not know its peers.
        name: What the owner calls it.
    """
    return name if owner is None else f"{prefix_of(owner)}{name}"


def prefix_of(owner: str) -> str:
    """Return what all keys of a user's begin with, and nobody else's."""
    return f"{OWNED}{_escaped(owner)}/"


def _escaped(user: str) -> str:
    return "".join(
        quote(letter, safe="", errors="surrogatepass") if _is_special(letter) else letter
        for letter in user
    )


def _is_special(letter: str) -> bool:
    return letter in "%/" or not letter.isprintable()


def owner_of(key: str) -> tuple[str, str]:
    """Return whose a key is (`NO_USER`: nobody's), and what its owner calls it."""
    found = re.fullmatch(f"{OWNED}([^/]+)/(.*)", key, re.DOTALL)
    if found is None:
        return NO_USER, key
    return unquote(found[1], errors="surrogatepass"), found[2]


def peer_of(key: str) -> Peer:
    """Return who a key's user is, for whoever tells tenants and rights apart.

    No listener: after a restart it is not known any more by which one it was made.
    """
    user, name = owner_of(key)
    return Peer("", printable(user), name)


class Names:
    """Finds the keys of names.

    Args:
        what: What they are names of, for sentences: `subscription`, `writer`.
        heir: The user whose names those are that were made where nobody was known; None: nobody's.
        most: How many one user may have.
        known: All keys that there are.
    """

    def __init__(
        self, what: str, heir: str | None, most: int, known: Callable[[], Iterable[str]]
    ) -> None:
        self._what = what
        self._heir = heir
        self._most = most
        self._known = known

    def find(self, owner: str | None, name: str) -> tuple[str, str | None]:
        """Return the key of a name, and why it may not be made anew or reached, if it may not be.

        Args:
            owner: Who asks; None: the relay does not know its peers.
            name: What the owner calls it.
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
                f"{self._what} {name!r} was made before this relay asked its peers who they are, "
                "and is nobody's: whoever runs the relay can give it to a user (--range-owner USER)"
            )
        prefix = prefix_of(owner)
        if sum(each.startswith(prefix) for each in known) >= self._most:
            return key, (
                f"user {owner} has {self._most} of these names, which is the limit for each "
                f"(--max-range-names): a {self._what} that is not needed any more can be dropped"
            )
        return key, None

    def _fault_of_nobodys(self, name: str) -> str | None:
        if not name.startswith(OWNED):
            return None
        return (
            f"{self._what} {name!r}: a name may not begin with {OWNED}, which is for those of users"
            " (--passwords)"
        )


def any_names(what: str, known: Callable[[], Iterable[str]]) -> Names:
    """Make a `Names` without an heir, and the usual number of names for each user."""
    return Names(what, None, DEFAULT_NAMES_EACH, known)
