"""Addresses of MQTT servers, as people write them."""

from __future__ import annotations

from typing import Final, Self
from urllib.parse import unquote, urlsplit

import attrs

from ._open import MQTT_PORT, MQTT_TLS_PORT

_PLAIN: Final = ("mqtt", "mqtt+tcp")
_SECURE: Final = ("mqtts", "mqtt+tls")
_UNIX: Final = "mqtt+unix"

_WRITE: Final = (
    "write mqtt://HOST:PORT, mqtts://HOST:PORT for TLS, or mqtt+unix:///PATH; USER:PASSWORD@ may "
    "stand in front of the host"
)


@attrs.frozen
class MqttAddress:
    """The address of an MQTT server: host and port, or the path of a socket; and a login."""

    host: str = ""
    """The host's name or address; empty with `path`."""
    port: int = MQTT_PORT
    """The TCP port."""
    path: str = ""
    """The path of a Unix socket."""
    tls: bool = False
    """Whether the connection is encrypted."""
    username: str | None = None
    """The user's name, if the address has one."""
    password: str | None = attrs.field(default=None, repr=False)
    """The password, likewise."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `mqtt://HOST:PORT`, `mqtts://HOST:PORT`, `mqtt+unix:///PATH`, or `HOST:PORT`.

        `mqtt+tcp` and `mqtt+tls`, as a relay has them, are `mqtt` and `mqtts`. `USER@` or
        `USER:PASSWORD@` may stand in front of the host. The default ports are those registered for
        MQTT.

        Raises:
            ValueError: It is none of these; the message says what to write, and has no password.
        """
        try:
            parts = urlsplit(text if "://" in text else f"mqtt://{text}")
            plain = not (parts.query or parts.fragment)
            if parts.scheme == _UNIX and not parts.netloc and parts.path and plain:
                return cls(path=parts.path)
            plain = plain and parts.path in ("", "/")
            if parts.password is not None and not parts.username:
                plain = False  # [MQTT-3.1.2-22]
            if parts.scheme in (*_PLAIN, *_SECURE) and parts.hostname and plain:
                tls = parts.scheme in _SECURE
                return cls(
                    host=parts.hostname,
                    port=parts.port or (MQTT_TLS_PORT if tls else MQTT_PORT),
                    tls=tls,
                    username=None if parts.username is None else unquote(parts.username),
                    password=None if parts.password is None else unquote(parts.password),
                )
        except ValueError:  # An invalid port, or a bracket that is not closed.
            pass
        msg = f'"{without_password(text)}" is no address of an MQTT server: {_WRITE}'
        raise ValueError(msg)


def without_password(url: str) -> str:
    """Return a URL without its password."""
    user, at, rest = url.rpartition("@")
    name, colon, password = user.rpartition(":")
    has_one = at and colon and password and not password.startswith("//")
    return f"{name}:...@{rest}" if has_one else url
