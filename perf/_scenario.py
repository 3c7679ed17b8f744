"""What to put on a server: everything that can be said about a measurement."""

from __future__ import annotations

import math
import re
from typing import Any, Final, Literal
from urllib.parse import unquote, urlsplit

import attrs

from ..transports.mqtt import MQTT_PORT, MQTT_TLS_PORT
from ._errors import ScenarioError
from ._profile import Profile
from ._sizes import Sizes
from ._topics import Topics

DEFAULT_URI: Final = "mqtt://127.0.0.1:1883"

MAX_PREFETCH: Final = 65_535
"""As large as MQTT 5's Receive Maximum can be (section 3.1.2.11.3)."""

MAX_RECEIVE_BUFFER: Final = (1 << 31) - 1
"""SO_RCVBUF is an int of C's (socket(7)); the kernel has a limit of its own."""

MAX_CLIENTS: Final = 50_000
"""Of each sort: a process has some 28,000 ports to one address, and several processes as many."""

_WITH_TLS: Final = ("mqtts", "mqtt+tls")

_STALL: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?):([0-9]+(?:\.[0-9]+)?)")


@attrs.frozen
class Stall:
    """A while in which a subscriber reads nothing."""

    after: float
    """Seconds from the beginning of the run."""
    seconds: float
    """How long."""


def parse_stalls(text: str) -> tuple[Stall, ...]:
    """Read `AFTER:SECONDS`, several of them separated by commas.

    Raises:
        ScenarioError: It is none, or they overlap.
    """
    found: list[Stall] = []
    for part in text.split(","):
        match = _STALL.fullmatch(part.strip())
        if match is None:
            msg = f'"{part.strip()}" is not AFTER:SECONDS, in seconds from the beginning ("5:10")'
            raise ScenarioError(msg)
        stall = Stall(float(match[1]), float(match[2]))
        if found and stall.after < found[-1].after + found[-1].seconds:
            msg = f'"{text}": a stall begins before the one before it is over'
            raise ScenarioError(msg)
        found.append(stall)
    return tuple(found)


def server_of(uri: str) -> tuple[str, int]:
    """Return host and port of `mqtt://user:password@host:port`, without a user or with one.

    `mqtts` and `mqtt+tls` are `mqtt` with TLS.

    Raises:
        ScenarioError: It is no such URI.
    """
    try:
        parts = urlsplit(uri)
        port = parts.port
    except ValueError as error:
        msg = f'"{shown(uri)}": {error}'
        raise ScenarioError(msg) from error
    known = parts.scheme in ("mqtt", "mqtt+tcp", *_WITH_TLS)
    if not known or not parts.hostname or parts.path.strip("/"):
        msg = f'"{shown(uri)}" is not mqtt://HOST:PORT or mqtts://HOST:PORT'
        raise ScenarioError(msg)
    if parts.password is not None and not parts.username:
        raise ScenarioError("a password, and no user name before it [MQTT-3.1.2-22]")
    if port is None:
        port = MQTT_TLS_PORT if is_secure(uri) else MQTT_PORT
    return parts.hostname, port


def is_secure(uri: str) -> bool:
    """Whether connections to it are encrypted."""
    return urlsplit(uri).scheme in _WITH_TLS


def user_of(uri: str) -> tuple[str | None, bytes | None]:
    """Return user name and password of `mqtt://user:password@host`, either or both of them None."""
    parts = urlsplit(uri)
    user = None if parts.username is None else unquote(parts.username)
    return user, None if parts.password is None else unquote(parts.password).encode()


def shown(uri: str) -> str:
    """Return it without its password."""
    user, at, rest = uri.rpartition("@")
    name, _, password = user.rpartition(":")
    return f"{name}:...@{rest}" if at and "//" in name and password else uri


def _not_negative(_: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and value < 0:
        msg = f"{attribute.name} is {value:g}; it cannot be below 0"
        raise ScenarioError(msg)
    if value is not None and not math.isfinite(value):
        msg = f"{attribute.name} is {value:g}; it is to be a number"
        raise ScenarioError(msg)


def _at_least_one(_: object, attribute: attrs.Attribute[Any], value: int) -> None:
    if value < 1:
        msg = f"{attribute.name} is {value}; at least 1"
        raise ScenarioError(msg)


TLS_FILES: Final = ("tls_ca", "tls_certificate", "tls_key")
"""What a scenario has that are names of files: they are nobody's business but the generator's."""

TLS_FIELDS: Final = (*TLS_FILES, "tls_insecure")
"""What a scenario has that says nothing without TLS."""


@attrs.frozen(kw_only=True)
class Scenario:
    """One measurement. Times are in seconds.

    Raises:
        ScenarioError: If something cannot be what it is said to be.
    """

    name: str = "perf"
    """What it is called in what is written about it."""
    uri: str = DEFAULT_URI
    """The server: `mqtt://host:port`, or `mqtt://user:password@host:port`; `mqtts` with TLS."""
    tls_ca: str | None = None
    """File with the certificates of those whose signature is believed under the server's; None:
    those that the system believes."""
    tls_certificate: str | None = None
    """File with the clients' own certificate, for a server that asks for it."""
    tls_key: str | None = None
    """File with its key; None: it is in the same file."""
    tls_insecure: bool = False
    """Whether any server is believed, whoever it is."""
    mqtt: Literal["3.1.1", "5"] | None = None
    """Which version is spoken; None: 3.1.1, or 5 where there is a prefetch."""
    publishers: int = attrs.field(default=1, validator=_not_negative)
    subscribers: int = attrs.field(default=1, validator=_not_negative)
    topic: str = "perf/{publisher}"
    """Where publishers publish to: see `Topics`."""
    filter: str | None = None
    """What subscribers subscribe to; None: to all that is published."""
    topics: int = attrs.field(default=1, validator=_at_least_one)
    """Topics that each publisher publishes to, in turn."""
    size: Sizes = attrs.field(factory=lambda: Sizes((200,)))
    """Of payloads."""
    rate: Profile | None = None
    """Of each publisher; None: as fast as it can."""
    qos: Literal[0, 1, 2] = 0
    """Of publications."""
    subscriber_qos: Literal[0, 1, 2] | None = None
    """Of subscriptions; None: as of publications."""
    in_flight: int = attrs.field(default=100, validator=_at_least_one)
    """Publications of one publisher that are not acknowledged, with QoS 1 and 2. As PerfTest's
    `--confirm 100` in its documentation's examples."""
    prefetch: int | None = None
    """How many messages with QoS 1 and 2 a server may send to a subscriber that has not
    acknowledged them: MQTT 5's Receive Maximum; None: as many as it likes to. With MQTT 3.1.1 it
    is for the server alone to say."""
    ack_every: int | None = None
    """Subscribers acknowledge so many at a time; None: each at once, or all that there are after
    `ack_interval`. No more than may be unacknowledged, or nothing moves: mosquitto's default is
    20."""
    ack_interval: float = attrs.field(default=0.0, validator=_not_negative)
    """They acknowledge what they have no later than this."""
    delay: float = attrs.field(default=0.0, validator=_not_negative)
    """What each subscriber takes for each message."""
    slow: int = attrs.field(default=0, validator=_not_negative)
    """How many of the subscribers are slow ones, the first of them."""
    slow_delay: float = attrs.field(default=0.0, validator=_not_negative)
    """What these take for each message."""
    slow_stalls: tuple[Stall, ...] = ()
    """When these read nothing."""
    ramp: float = attrs.field(default=0.0, validator=_not_negative)
    """Publishers begin one after the other, within this time."""
    seconds: float = attrs.field(default=10.0, validator=_not_negative)
    """How long is published."""
    drain: float = attrs.field(default=10.0, validator=_not_negative)
    """For how long, after that, subscribers may still get what they are to get."""
    reconnect: float | None = attrs.field(default=1.0, validator=_not_negative)
    """After how long a client comes back that has been cut off; None: never."""
    receive_buffer: int | None = None
    """Bytes of a subscriber's socket buffer (SO_RCVBUF); None: the system's. What a stalled
    subscriber's kernel takes, its server does not have to."""
    clock: Literal["monotonic", "wall"] = "monotonic"
    """Which clock is in the messages: the machine's own, or the time of day, for publishers and
    subscribers on several machines, whose clocks have to agree."""
    processes: int | None = None
    """How many processes generate the load; None: as many as it takes, by an estimate."""
    seed: int = 0
    """For what is by lot."""

    def __attrs_post_init__(self) -> None:
        """Look at how the values go together."""
        server_of(self.uri)
        self._check_tls()
        self.routes()
        if not self.publishers and not self.subscribers:
            raise ScenarioError("neither publishers nor subscribers: nothing to do")
        if max(self.publishers, self.subscribers) > MAX_CLIENTS:
            msg = f"more than {MAX_CLIENTS} publishers or subscribers from one machine"
            raise ScenarioError(msg)
        if self.slow > self.subscribers:
            msg = f"{self.slow} slow subscribers of {self.subscribers}"
            raise ScenarioError(msg)
        if self.slow and not (self.slow_delay or self.slow_stalls):
            msg = "slow subscribers that do nothing slowly: give --slow-delay or --slow-stalls"
            raise ScenarioError(msg)
        if not self.slow and (self.slow_delay or self.slow_stalls):
            raise ScenarioError("what slow subscribers do, and none of them: give --slow")
        if self.ack_every is not None and self.ack_every < 1:
            msg = f"ack_every is {self.ack_every}; at least 1"
            raise ScenarioError(msg)
        self._check_prefetch()
        if self.receive_buffer is not None and not 1 <= self.receive_buffer <= MAX_RECEIVE_BUFFER:
            msg = f"a receive_buffer of {self.receive_buffer}; there are 1 to {MAX_RECEIVE_BUFFER}"
            raise ScenarioError(msg)
        if self.processes is not None and self.processes < 1:
            raise ScenarioError("at least one process")
        if not self.seconds > 0:
            raise ScenarioError("a run takes more than 0 seconds")

    def _check_tls(self) -> None:
        given = [name for name in TLS_FIELDS if getattr(self, name)]
        if given and not self.tls:
            msg = (
                f"{given[0]} is for TLS, and {shown(self.uri)} is without: mqtts://HOST:PORT has it"
            )
            raise ScenarioError(msg)

    def _check_prefetch(self) -> None:
        if self.prefetch is None:
            return
        if not 1 <= self.prefetch <= MAX_PREFETCH:
            msg = f"a prefetch of {self.prefetch}; there are 1 to {MAX_PREFETCH}"
            raise ScenarioError(msg)
        if self.mqtt == "3.1.1":
            raise ScenarioError(
                "with MQTT 3.1.1 the prefetch is the server's to say (clearfunds relay "
                "--max-inflight, mosquitto's max_inflight_messages); leave either out"
            )
        # Who publishes on another machine may do so with any QoS.
        if (self.publishers and not self.qos) or self.subscriber_qos == 0:
            raise ScenarioError(
                "a prefetch says nothing of QoS 0, which nobody acknowledges: give --qos 1"
                + ("" if self.subscriber_qos is None else " and --subscriber-qos 1")
            )

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return is_secure(self.uri)

    @property
    def version(self) -> Literal["3.1.1", "5"]:
        """Which version of MQTT is spoken."""
        return self.mqtt or ("3.1.1" if self.prefetch is None else "5")

    def routes(self) -> Topics:
        """Return its topics and filters."""
        return Topics.make(self.topic, self.filter, self.topics)

    def began(self, publisher: int) -> float:
        """Return when a publisher begins, in seconds from the beginning of the run."""
        return self.ramp * publisher / self.publishers

    def due(self, at: float) -> int | None:
        """Return how many messages all publishers are to have published by then.

        None if they are to publish as fast as they can.
        """
        if self.rate is None:
            return None
        # What is due at the very end is published no more.
        last = min(at, self.seconds - 1e-6)
        return sum(self.rate.due(last - self.began(n)) for n in range(self.publishers))
