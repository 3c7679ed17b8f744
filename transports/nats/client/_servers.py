"""Addresses of a cluster's servers, and which one is next."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import unquote, urlsplit

import attrs

from ..._errors import LocalProtocolError
from ._login import Login

NATS_PORT: Final = 4222

FIRST_PAUSE: Final = 0.05
LONGEST_PAUSE: Final = 2.0
"""Seconds between two tries of the same server: the first pause, and the longest after ever more
failures, which is the `ReconnectWait` of nats.go."""


_WRITE: Final = "write nats://HOST:PORT or tls://HOST:PORT"


@attrs.frozen
class ServerAddress:
    """A server's address.

    Attributes:
        host: A name, or an address.
        port: The TCP port.
        tls: Whether the connection has to be encrypted.
        login: The login that its URL has, if any.
        tls_name: The name that its certificate must have, if it is not the host.
    """

    host: str
    port: int
    tls: bool = False
    login: Login | None = None
    tls_name: str | None = attrs.field(default=None, eq=False)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'tls' if self.tls else 'nats'}://{host}:{self.port}"

    @classmethod
    def parse(cls, url: str) -> ServerAddress:
        """Return the address of a URL: nats://[USER:PASSWORD@ or TOKEN@]HOST[:PORT], or tls://.

        Raises:
            LocalProtocolError: It is no such URL; the message says what to write.
        """
        text = url.strip()
        if "://" not in text:
            text = f"nats://{text}"
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise LocalProtocolError(f"{url!r} is no address of a NATS server: {_WRITE}") from error
        if parts.scheme not in ("nats", "tls") or not parts.hostname or parts.path not in ("", "/"):
            raise LocalProtocolError(f"{url!r} is no address of a NATS server: {_WRITE}")
        login = None
        if parts.password is not None:
            login = Login(user=unquote(parts.username or ""), password=unquote(parts.password))
        elif parts.username:
            login = Login(token=unquote(parts.username))
        return cls(parts.hostname, port or NATS_PORT, parts.scheme == "tls", login)


@attrs.define
class _Tried:
    address: ServerAddress
    configured: bool
    """Whether the program gave it, not another server."""
    failures: int = 0
    not_before: float = 0.0


class ServerPool:
    """The servers to try, by turns, each after a pause that grows with its failures.

    Args:
        urls: Their addresses, one string with commas or several.
        shuffle: Whether to try them in random order, which spreads clients over a cluster.

    Raises:
        LocalProtocolError: There is none, or a URL is wrong.
    """

    def __init__(self, urls: str | Iterable[str], *, shuffle: bool = True) -> None:
        listed = urls.split(",") if isinstance(urls, str) else list(urls)
        addresses = [ServerAddress.parse(url) for url in listed if url.strip()]
        if not addresses:
            raise LocalProtocolError("name at least one NATS server: nats://HOST:PORT")
        self._shuffle = shuffle
        if shuffle:
            random.shuffle(addresses)
        self._tried = [_Tried(each, configured=True) for each in addresses]

    def __len__(self) -> int:
        return len(self._tried)

    def __iter__(self) -> Iterator[ServerAddress]:
        return (each.address for each in self._tried)

    def next(self) -> tuple[ServerAddress, float]:
        """Return the server to try now, and the time before which not to try it; 0: at once.

        Times are those of the clock that `failed` is given.
        """
        # Stable: those equal keep their order, and one that has been tried goes to the end.
        first = min(self._tried, key=lambda each: each.not_before)
        self._tried.remove(first)
        self._tried.append(first)
        return first.address, first.not_before

    def failed(self, address: ServerAddress, now: float) -> None:
        """Note that a server could not be reached, or ended the connection before it was of use."""
        for each in self._tried:
            if each.address == address:
                pause = min(FIRST_PAUSE * 2**each.failures, LONGEST_PAUSE)
                each.failures = min(each.failures + 1, 30)
                # Clients that lost the same server should not come back at the same moment.
                each.not_before = now + pause * random.uniform(0.5, 1.0)

    def worked(self, address: ServerAddress) -> None:
        """Note that a server has accepted the connection."""
        for each in self._tried:
            if each.address == address:
                each.failures = 0
                each.not_before = 0.0

    def learn(self, urls: Iterable[str], via: ServerAddress) -> None:
        """Take the addresses that a server says its cluster has, in place of those it said before.

        Args:
            urls: HOST:PORT each.
            via: The server: the others are encrypted if it is, and get the same login.
        """
        said: list[ServerAddress] = []
        for url in urls:
            try:
                found = ServerAddress.parse(url)
            except LocalProtocolError:
                continue  # It is for servers of another kind.
            # Servers name each other by address; their certificates are for the cluster's name.
            name = via.tls_name or via.host
            said.append(attrs.evolve(found, tls=via.tls, login=via.login, tls_name=name))
        if not said:
            return
        known = {(each.address.host, each.address.port) for each in self._tried}
        new = [each for each in said if (each.host, each.port) not in known]
        if self._shuffle:
            random.shuffle(new)
        places = {(each.host, each.port) for each in said}
        self._tried = [
            each
            for each in self._tried
            if each.configured
            or each.address == via
            or (each.address.host, each.address.port) in places
        ]
        self._tried += [_Tried(each, configured=False) for each in new]
