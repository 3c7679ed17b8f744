"""Scenarios: all settings of a measurement."""

from __future__ import annotations

import math
import re
from typing import Any, Final, Literal

import attrs

from ..transports.mqtt import MqttAddress, without_password
from ._errors import ScenarioError
from ._profile import Profile
from ._sizes import Sizes
from ._topics import Topics

DEFAULT_URI: Final = "mqtt://127.0.0.1:1883"

MAX_PREFETCH: Final = 65_535
"""The largest Receive Maximum of MQTT 5 (section 3.1.2.11.3)."""

MAX_RECEIVE_BUFFER: Final = (1 << 31) - 1
"""SO_RCVBUF is a C int (socket(7)); the kernel has a limit of its own."""

MAX_CLIENTS: Final = 50_000
"""For each kind: a process has some 28,000 ports to one address, and several processes as many."""

_STALL: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?):([0-9]+(?:\.[0-9]+)?)")


@attrs.frozen
class Stall:
    """A time in which a subscriber reads nothing."""

    after: float
    """Seconds from the beginning of the run."""
    seconds: float
    """Its length."""


def parse_stalls(text: str) -> tuple[Stall, ...]:
    """Read `AFTER:SECONDS`, several of them separated by commas.

    Raises:
        ScenarioError: It has another form, or they overlap.
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


def server_of(uri: str) -> MqttAddress:
    """Return the server's address; see `MqttAddress.parse`.

    Raises:
        ScenarioError: It is none, or the path of a socket: a load goes over TCP.
    """
    try:
        address = MqttAddress.parse(uri)
    except ValueError as error:
        raise ScenarioError(str(error)) from error
    if address.path:
        raise ScenarioError(f'"{uri}" is a Unix socket: give mqtt://HOST:PORT or mqtts://HOST:PORT')
    return address


def _not_negative(_: object, attribute: attrs.Attribute[Any], value: float | None) -> None:
    if value is not None and value < 0:
        msg = f"{attribute.name} is {value:g}; it cannot be below 0"
        raise ScenarioError(msg)
    if value is not None and not math.isfinite(value):
        msg = f"{attribute.name} is {value:g}; it must be a number"
        raise ScenarioError(msg)


def _at_least_one(_: object, attribute: attrs.Attribute[Any], value: int) -> None:
    if value < 1:
        msg = f"{attribute.name} is {value}; at least 1"
        raise ScenarioError(msg)


TLS_FILES: Final = ("tls_ca", "tls_certificate", "tls_key")
"""Fields with names of files: private to the generator's machine, reports do not show them."""

TLS_FIELDS: Final = (*TLS_FILES, "tls_insecure")
"""Fields that have no effect without TLS."""


@attrs.frozen(kw_only=True)
class Scenario:
    """One measurement. Times are in seconds.

    Raises:
        ScenarioError: A value, or a combination of values, is invalid.
    """

    name: str = "perf"
    """Its name in the reports."""
    uri: str = DEFAULT_URI
    """The server: `mqtt://host:port`, or `mqtt://user:password@host:port`; `mqtts` with TLS; or
    `host:port`."""
    tls_ca: str | None = None
    """File with the certificates of the authorities trusted to sign the server's; None: the
    system's."""
    tls_certificate: str | None = None
    """File with the clients' certificate, for a server that asks for it."""
    tls_key: str | None = None
    """File with its key; None: it is in the same file."""
    tls_insecure: bool = False
    """Whether the server's certificate is not checked."""
    mqtt: Literal["3.1.1", "5"] | None = None
    """The version of MQTT; None: 3.1.1, or 5 with a prefetch."""
    publishers: int = attrs.field(default=1, validator=_not_negative)
    subscribers: int = attrs.field(default=1, validator=_not_negative)
    topic: str = "perf/{publisher}"
    """The topics of publishers: see `Topics`."""
    filter: str | None = None
    """The filters of subscribers; None: everything published."""
    topics: int = attrs.field(default=1, validator=_at_least_one)
    """Number of topics of each publisher, which it uses in turn."""
    size: Sizes = attrs.field(factory=lambda: Sizes((200,)))
    """Of payloads."""
    rate: Profile | None = None
    """Of each publisher; None: as fast as it can."""
    qos: Literal[0, 1, 2] = 0
    """QoS of publications."""
    subscriber_qos: Literal[0, 1, 2] | None = None
    """QoS of subscriptions; None: that of publications."""
    in_flight: int = attrs.field(default=100, validator=_at_least_one)
    """The in-flight window: unacknowledged publications of one publisher, with QoS 1 and 2. As
    PerfTest's `--confirm 100` in its documentation's examples."""
    prefetch: int | None = None
    """Messages with QoS 1 and 2 that a server may send to a subscriber without acknowledgement:
    MQTT 5's Receive Maximum; None: no limit. With MQTT 3.1.1 only the server can set it."""
    ack_every: int | None = None
    """Messages that a subscriber acknowledges at a time; None: each at once, or everything after
    `ack_interval`. More than the server's in-flight window would block: mosquitto's default is
    20."""
    ack_interval: float = attrs.field(default=0.0, validator=_not_negative)
    """The longest time until a subscriber acknowledges the messages in hand."""
    delay: float = attrs.field(default=0.0, validator=_not_negative)
    """Time that each subscriber takes for each message."""
    slow: int = attrs.field(default=0, validator=_not_negative)
    """Number of slow subscribers, the first ones."""
    slow_delay: float = attrs.field(default=0.0, validator=_not_negative)
    """Time that these take for each message."""
    slow_stalls: tuple[Stall, ...] = ()
    """Times in which these read nothing."""
    ramp: float = attrs.field(default=0.0, validator=_not_negative)
    """Publishers begin one after the other, within this time."""
    seconds: float = attrs.field(default=10.0, validator=_not_negative)
    """Duration of publishing."""
    drain: float = attrs.field(default=10.0, validator=_not_negative)
    """Time that subscribers have after that to get the rest."""
    reconnect: float | None = attrs.field(default=1.0, validator=_not_negative)
    """Delay until a lost client reconnects; None: never."""
    receive_buffer: int | None = None
    """Size of a subscriber's socket buffer (SO_RCVBUF), in bytes; None: the system's. A stalled
    subscriber's kernel takes this much off its server."""
    clock: Literal["monotonic", "wall"] = "monotonic"
    """The clock of the messages: the machine's own, or the time of day, for publishers and
    subscribers on several machines, whose clocks have to agree."""
    processes: int | None = None
    """Number of processes that generate the load; None: an estimate."""
    seed: int = 0
    """Seed of the random numbers."""

    def __attrs_post_init__(self) -> None:
        """Check the combinations of values."""
        server_of(self.uri)
        self._check_tls()
        self.routes()
        if not self.publishers and not self.subscribers:
            raise ScenarioError("neither publishers nor subscribers: nothing to do")
        if max(self.publishers, self.subscribers) > MAX_CLIENTS:
            msg = f"more than {MAX_CLIENTS} publishers or subscribers from one machine"
            raise ScenarioError(msg)
        if self.slow > self.subscribers:
            msg = (
                f"{self.slow} slow subscribers of {self.subscribers}: give a smaller --slow, or "
                "more --subscribers"
            )
            raise ScenarioError(msg)
        if self.slow and not (self.slow_delay or self.slow_stalls):
            msg = "slow subscribers that do nothing slowly: give --slow-delay or --slow-stalls"
            raise ScenarioError(msg)
        if not self.slow and (self.slow_delay or self.slow_stalls):
            raise ScenarioError("options of slow subscribers, but no slow ones: give --slow")
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
            uri = without_password(self.uri)
            msg = f"{given[0]} needs TLS, and {uri} does not use it: give mqtts://HOST:PORT"
            raise ScenarioError(msg)

    def _check_prefetch(self) -> None:
        if self.prefetch is None:
            return
        if not 1 <= self.prefetch <= MAX_PREFETCH:
            msg = f"a prefetch of {self.prefetch}; there are 1 to {MAX_PREFETCH}"
            raise ScenarioError(msg)
        if self.mqtt == "3.1.1":
            raise ScenarioError(
                "with MQTT 3.1.1 only the server sets the prefetch (clearfunds relay "
                "--max-inflight, mosquitto's max_inflight_messages); leave either out"
            )
        # Publishers on another machine may use any QoS.
        if (self.publishers and not self.qos) or self.subscriber_qos == 0:
            raise ScenarioError(
                "a prefetch has no effect with QoS 0, without acknowledgements: give --qos 1"
                + ("" if self.subscriber_qos is None else " and --subscriber-qos 1")
            )

    @property
    def tls(self) -> bool:
        """Whether connections are encrypted."""
        return server_of(self.uri).tls

    @property
    def version(self) -> Literal["3.1.1", "5"]:
        """The version of MQTT."""
        return self.mqtt or ("3.1.1" if self.prefetch is None else "5")

    def routes(self) -> Topics:
        """Return its topics and filters."""
        return Topics.make(self.topic, self.filter, self.topics)

    def began(self, publisher: int) -> float:
        """Return the time when a publisher begins, in seconds from the beginning of the run."""
        return self.ramp * publisher / self.publishers

    def due(self, at: float) -> int | None:
        """Return the number of messages that all publishers should have published by then.

        None if they publish as fast as they can.
        """
        if self.rate is None:
            return None
        # A message due at the very end is not published.
        last = min(at, self.seconds - 1e-6)
        return sum(self.rate.due(last - self.began(n)) for n in range(self.publishers))
