"""The fields of MQTT packets: numbers, strings and binary data (section 1.5).

Both versions have the same fields. They differ in the numbers of their statements and in the
exceptions: MQTT 5 distinguishes malformed fields from forbidden values. So each version has one
`Fields` that knows both, and a `Reader` for each body.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

from ..._errors import LocalProtocolError
from ._frames import KIND_NAMES, encode_remaining_length
from ._topics import MAX_STRING_BYTES, topic_filter_fault

if TYPE_CHECKING:
    from ..._errors import RemoteProtocolError


def framed(first_byte: int, body: bytes) -> bytes:
    """Return a packet made of its first byte and its body, with the remaining length between them.

    Raises:
        LocalProtocolError: if it is too large.
    """
    return b"".join((bytes((first_byte,)), encode_remaining_length(len(body)), body))


class Fields:
    """Writes and reads the fields of one version of MQTT.

    A bad value to be sent is always a `LocalProtocolError`.

    Args:
        utf8: the statement that a string must be well-formed UTF-8.
        null: the statement that it must not contain U+0000.
        binary: the section on the length of binary data.
        identifier: the statement that a packet identifier must not be 0.
        malformed: makes the exception for a field that cannot be parsed, from a description.
        forbidden: makes the exception for a value that is not allowed, from a description.
    """

    __slots__ = ("_binary", "_identifier", "_null", "_utf8", "forbidden", "malformed")

    def __init__(
        self,
        *,
        utf8: str,
        null: str,
        binary: str,
        identifier: str,
        malformed: Callable[[str], "RemoteProtocolError"],
        forbidden: Callable[[str], "RemoteProtocolError"],
    ) -> None:
        self._utf8 = utf8
        self._null = null
        self._binary = binary
        self._identifier = identifier
        self.malformed = malformed
        self.forbidden = forbidden

    # -- writing --------------------------------------------------------------------------------

    def string(self, what: str, value: str) -> bytes:
        """Encode a string, its length in front; exceptions call it `what`."""
        try:
            encoded = value.encode()
        except UnicodeEncodeError as exc:
            raise LocalProtocolError(
                f"{what} cannot be written as UTF-8: {exc.reason} {self._utf8}"
            ) from None
        if b"\0" in encoded:
            raise LocalProtocolError(f"{what} contains U+0000 {self._null}")
        return self.binary(what, encoded)

    def binary(self, what: str, value: bytes) -> bytes:
        """Encode binary data, its length in front."""
        if len(value) > MAX_STRING_BYTES:
            raise LocalProtocolError(
                f"{what} of {len(value)} bytes is longer than {MAX_STRING_BYTES} ({self._binary})"
            )
        return len(value).to_bytes(2, "big") + value

    def packet_id(self, what: str, packet_id: int) -> bytes:
        """Encode a packet identifier; exceptions call its packet `what`."""
        if not 1 <= packet_id <= 65_535:
            raise LocalProtocolError(
                f"{what} needs a packet identifier from 1 to 65535, not {packet_id} "
                f"{self._identifier}"
            )
        return packet_id.to_bytes(2, "big")

    # -- reading --------------------------------------------------------------------------------

    def text(self, encoded: bytes, what: str, statement: str = "") -> str:
        """Decode a string without its length; `statement` also requires it to be UTF-8."""
        try:
            value = encoded.decode()
        except UnicodeDecodeError as exc:
            raise self.ill_formed(what, exc, statement) from None
        if "\0" in value:
            raise self.malformed(f"{what} contains U+0000 {self._null}")
        return value

    def ill_formed(
        self, what: str, exc: UnicodeDecodeError, statement: str = ""
    ) -> "RemoteProtocolError":
        """Return the exception for a string that is not UTF-8."""
        return self.malformed(
            f"{what} is not well-formed UTF-8: {exc.reason} at byte {exc.start} "
            f"{self._utf8}{statement}"
        )

    def no_identifier(self, packet: str) -> "RemoteProtocolError":
        """Return the exception for a packet with identifier 0."""
        return self.forbidden(
            f"{packet} has packet identifier 0; use 1 to 65535 {self._identifier}"
        )


class Reader:
    """Takes one field after another from the body of a packet.

    A field that breaks a rule raises the exception of its version. `statement` is the one that
    requires the field; by default it is the section on the packet.
    """

    __slots__ = ("_at", "_body", "_fields", "_packet")

    def __init__(self, fields: Fields, kind: int, body: bytes) -> None:
        self._fields = fields
        self._packet = KIND_NAMES[kind]
        self._body = body
        self._at = 0

    @property
    def at_end(self) -> bool:
        """Whether nothing is left."""
        return self._at == len(self._body)

    def byte(self, what: str, statement: str = "") -> int:
        """Take a byte."""
        at = self._at
        if at >= len(self._body):
            self._ends_in(what, statement)
        self._at = at + 1
        return self._body[at]

    def uint16(self, what: str, statement: str = "") -> int:
        """Take a two byte integer."""
        at, body = self._at, self._body
        if at + 2 > len(body):
            self._ends_in(what, statement)
        self._at = at + 2
        return body[at] << 8 | body[at + 1]

    def packet_id(self, statement: str = "") -> int:
        """Take a packet identifier."""
        packet_id = self.uint16("packet identifier", statement)
        if packet_id == 0:
            raise self._fields.no_identifier(self._packet)
        return packet_id

    def binary(self, what: str, statement: str = "") -> bytes:
        """Take binary data."""
        start = self._at + 2
        end = self._at = start + self.uint16(what, statement)
        if end > len(self._body):
            self._ends_in(what, statement)
        return self._body[start:end]

    def string(self, what: str, statement: str = "", utf8: str = "") -> str:
        """Take a string; `utf8` is a statement, beside the general one, that it be well-formed."""
        encoded = self.binary(what, statement)
        return self._fields.text(encoded, f"{self._packet}: its {what}", utf8)

    def topic_filter(self, statement: str = "") -> str:
        """Take a topic filter."""
        topic_filter = self.string("topic filter", statement, statement)
        if fault := topic_filter_fault(topic_filter):
            raise self._fields.malformed(f"{self._packet}: {fault}")
        return topic_filter

    def finish(self, statement: str = "") -> None:
        """Check that nothing is left."""
        if not self.at_end:
            raise self._fields.malformed(
                f"{self._packet} has {len(self._body) - self._at} bytes after its last field "
                f"{statement or self._section}"
            )

    @property
    def _section(self) -> str:
        return f"(section 3.{KIND_NAMES.index(self._packet)})"

    def _ends_in(self, what: str, statement: str) -> NoReturn:
        """Raise the exception for a packet that ends too early."""
        raise self._fields.malformed(
            f"{self._packet} ends before or in its {what} {statement or self._section}"
        )
