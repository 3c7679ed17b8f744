"""The options that only a relay has; all others are in `transports`."""

from typing import TYPE_CHECKING, Literal

import attrs

from ..access.acl import AclDefault
from ..transports._settings import ServerSettings
from ..transports._units import RELOADABLE, Between, Count, Seconds, above_nothing
from ._loop_alarm import DEFAULT_LOOP_LAG

if TYPE_CHECKING:
    from ..access._bearer_tokens import BearerTokens
    from ..access._passwords import Authenticator
    from ..access.acl import Acl


@attrs.frozen(kw_only=True, slots=False)
class PagesSettings:
    """Access to the pages of --http. /healthz and /readyz are open to everybody."""

    http_token: "BearerTokens | None" = attrs.field(default=None, repr=False)
    """Bearer token file, one token a line. Pages except /healthz and /readyz then require a token:
    as `Authorization: Bearer TOKEN` or, in a browser, as the password. Reloaded at SIGHUP."""
    http_password: "Authenticator | None" = attrs.field(default=None, repr=False)
    """Password file, in mosquitto_passwd's format. The same pages then require a login; with
    --http-token, either works. Reloaded at SIGHUP."""
    http_open: bool = False
    """Serve the pages to everybody who reaches them, without a token or password, on an address
    that other machines reach, too. Needed for that, so that it does not happen by accident."""
    http_host: tuple[str, ...] = ()
    """Host name of the pages, for browsers and scrapers, besides addresses, localhost and this
    machine's own name; *: any name. Repeatable."""
    max_http_connections: Count = 128
    """Concurrent connections to the pages. At the limit, a new connection replaces a waiting one,
    so /healthz always answers."""


@attrs.frozen(kw_only=True, slots=False)
class AuthorisationSettings:
    """Topics that users may publish to and read."""

    acl: "Acl | None" = None
    """Access control list: a file with the topics that users may publish to and read, in the format
    of mosquitto's acl_file. Reloaded at SIGHUP; withdrawn rights end at once."""
    acl_default: AclDefault | None = None
    """Access to topics without a matching rule; tenant: all topics except other tenants' [default:
    deny with --acl; without it tenant if clients must authenticate, otherwise allow]."""


@attrs.frozen(kw_only=True, slots=False)
class ClusteringSettings:
    """The cluster of relays that this one joins, and its name there."""

    cluster: str | None = None
    """NATS servers of a cluster of relays to join, nats://HOST:PORT, with commas between them;
    three or more keep the cluster's state on three. Needs JetStream. tls:// encrypts;
    USER:PASSWORD@ or TOKEN@ in front of the host logs in."""
    name: str | None = None
    """Name of this relay in the cluster, which no other relay has [default: this machine's]."""
    cluster_name: str = "clearfunds"
    """Name of the cluster: one NATS may serve several."""
    stand_in: bool = True
    """Stand in for other relays with --store nats that have gone: serve their sessions until they
    are back. Needs --store nats."""
    store_replicas: Literal[1, 3, 5] | None = None
    """Servers of JetStream that have a copy of the store, with --store nats: 1, 3 or 5 [default: 3
    if --cluster names three servers or more, else 1]."""


@attrs.frozen(kw_only=True, slots=False)
class RunningSettings:
    """The end of a relay, and how it runs."""

    grace: Seconds = attrs.field(default=5.0, metadata=RELOADABLE)
    """Shutdown grace period, in seconds: time to deliver outstanding messages after SIGTERM or
    SIGINT."""
    loop_lag_alarm: Seconds | None = attrs.field(default=DEFAULT_LOOP_LAG, validator=above_nothing)
    """Event loop lag alarm, in seconds: while the event loop stays later than this, no new
    connections are accepted; above twice as much, clients that have published nothing lately are
    not read either; none: not watched."""
    busy_poll: Seconds = 0.0
    """Busy polling, in seconds: how long the relay stays awake after each read. Lowers latency, and
    takes up to a whole core while there is traffic; 0: off."""
    otel_every: Seconds | None = attrs.field(default=None, validator=Between(0.1))
    """OpenTelemetry sampling interval, in seconds: one event per interval is traced and exported as
    spans, configured by OTEL_EXPORTER_OTLP_ENDPOINT and the other standard variables; none: off."""


@attrs.frozen(kw_only=True, slots=False)
class RelaySettings(
    ServerSettings, PagesSettings, AuthorisationSettings, ClusteringSettings, RunningSettings
):
    """Everything that can be said about a relay, under the names of its options.

    `RelaySettings(listen=("mqtt+tcp://0.0.0.0:1883",), limit_items=1_000, patience=5.0)`. Each
    field is documented in the class of its group. Where the option names a file, the field has what
    is read from it: `Passwords.from_file` (or another `Authenticator`) for `passwords` and
    `http_password`, `BearerTokens.from_file`, `Acl.from_file`, the bytes of `sturdy_key`.

    Raises:
        ValueError: A value is out of its range, or tenants contradict each other.
    """
