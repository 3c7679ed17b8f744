"""The API of JetStream: streams, consumers, publications with the server's word for them.

Source: the server's `jetstream_api.go`; NATS ADR-1 (the JSON of the API), ADR-22 (retries), ADR-31
(direct requests).
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Callable, Mapping
from typing import Any, Final, Literal, cast

import attrs
import trio

from ....sockets import TransportError
from ..._errors import LocalProtocolError, RemoteProtocolError
from ..client._client import NO_RESPONDERS, NatsClient
from ..client._errors import ConnectionLostError, NoRespondersError
from ..codec._headers import NO_HEADERS, HeadersToSend, decode_headers
from ..codec._messages import Message
from ._config import ConsumerConfig, ConsumerInfo, StreamConfig, StreamInfo, decoded
from ._errors import JetStreamError, NotFoundError, error_of
from ._message import Stored, seconds_of, stored

RETRIES: Final = 2
RETRY_PAUSE: Final = 0.25
"""Tries again, and seconds between them, where nobody answers: a new leader may be elected just now
[NATS ADR-22]."""


@attrs.frozen
class PubAck:
    """The server's word for a publication.

    Attributes:
        stream: The stream that has it.
        sequence: Its sequence there.
        duplicate: Whether the stream had a message with its identifier before; that one counts.
    """

    stream: str
    sequence: int
    duplicate: bool = False


class JetStream:
    """JetStream, by way of a client.

    Args:
        nats: The client.
        prefix: The beginning of the API's subjects; `$JS.DOMAIN.API` for another domain.
        timeout: Seconds for each request.
    """

    def __init__(self, nats: NatsClient, *, prefix: str = "$JS.API", timeout: float = 5.0) -> None:
        self.nats = nats
        self.prefix = prefix
        self._timeout = timeout

    async def call(self, name: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Send a request to the API, and return the JSON of the answer.

        Args:
            name: The subject without its prefix: STREAM.INFO.orders.
            body: The request's JSON.

        Raises:
            JetStreamError: The answer is an error; `NotFoundError` for what does not exist.
            NoRespondersError: There is no JetStream, or nobody leads it just now.
            NoAnswerError, ConnectionLostError: As `NatsClient.request`.
            RemoteProtocolError: The answer is no JSON object.
        """
        payload = b"" if body is None else json.dumps(body).encode()
        return _answer_of(await self._request(f"{self.prefix}.{name}", payload))

    async def _request(
        self, subject: str, payload: bytes, headers: HeadersToSend | None = None
    ) -> Message:
        for attempt in range(RETRIES + 1):
            if attempt:
                await trio.sleep(RETRY_PAUSE)
            try:
                return await self.nats.request(
                    subject, payload, headers=headers, timeout=self._timeout
                )
            except NoRespondersError:
                if attempt == RETRIES:
                    raise
        raise AssertionError

    # --- streams ----------------------------------------------------------------------------------

    async def create_stream(self, config: StreamConfig) -> StreamInfo:
        """Create a stream; one with the same configuration may exist.

        Raises:
            JetStreamError: Another one has the name or a subject, or the server cannot.
            TransportError: As `call`.
        """
        return decoded(
            StreamInfo.from_json,
            await self.call(f"STREAM.CREATE.{token(config.name)}", config.to_json()),
        )

    async def update_stream(self, config: StreamConfig) -> StreamInfo:
        """Change a stream's configuration.

        Raises:
            NotFoundError: There is none.
            JetStreamError: The server cannot change it so.
            TransportError: As `call`.
        """
        return decoded(
            StreamInfo.from_json,
            await self.call(f"STREAM.UPDATE.{token(config.name)}", config.to_json()),
        )

    async def stream_info(self, name: str) -> StreamInfo:
        """Return what the server says of a stream.

        Raises:
            NotFoundError: There is none.
            TransportError: As `call`.
        """
        return decoded(StreamInfo.from_json, await self.call(f"STREAM.INFO.{token(name)}"))

    async def stream_names(self, subject: str | None = None) -> list[str]:
        """Return the names of the streams, or of those that keep a subject.

        Raises:
            TransportError: As `call`.
        """
        return await self._listed(
            "STREAM.NAMES", "streams", {} if subject is None else {"subject": subject}
        )

    async def delete_stream(self, name: str) -> None:
        """Delete a stream, and all that it has.

        Raises:
            NotFoundError: There is none.
            TransportError: As `call`.
        """
        await self.call(f"STREAM.DELETE.{token(name)}")

    async def purge_stream(
        self, name: str, *, subject: str | None = None, before: int | None = None
    ) -> int:
        """Delete messages of a stream, and return how many.

        Args:
            name: The stream's name.
            subject: Only those of this subject, which may have wildcards.
            before: Only those with a lower sequence.

        Raises:
            NotFoundError: There is no such stream.
            TransportError: As `call`.
        """
        body: dict[str, Any] = {}
        if subject is not None:
            body["filter"] = subject
        if before is not None:
            body["seq"] = before
        found = await self.call(f"STREAM.PURGE.{token(name)}", body)
        return decoded(lambda each: int(each["purged"]), found)

    async def get_message(
        self,
        stream: str,
        *,
        sequence: int | None = None,
        last_for: str | None = None,
        direct: bool = True,
    ) -> Stored | None:
        """Return a message of a stream; None if it does not have it.

        Args:
            stream: The stream's name.
            sequence: The message's sequence; or
            last_for: the subject whose last message is wanted.
            direct: Whether any replica may answer, which may be behind: the stream needs
                `allow_direct`. Otherwise its leader does.

        Raises:
            LocalProtocolError: Not one of `sequence` and `last_for` is given, but both or none.
            NotFoundError: There is no such stream; a direct request gets `NoRespondersError`.
            TransportError: As `call`.
        """
        if (sequence is None) == (last_for is None):
            raise LocalProtocolError("give a message's sequence, or the subject of the last one")
        body = {"last_by_subj": last_for} if sequence is None else {"seq": sequence}
        if not direct:
            try:
                found = await self.call(f"STREAM.MSG.GET.{token(stream)}", body)
            except NotFoundError as error:
                if error.error_code == 10059:  # JSStreamNotFoundErr
                    raise
                return None
            return decoded(lambda each: _by_leader(stream, each["message"]), found)
        answer = await self._request(
            f"{self.prefix}.DIRECT.GET.{token(stream)}", json.dumps(body).encode()
        )
        status = answer.headers.status
        if status is None:
            return stored(answer)
        if status == 404:
            return None
        raise JetStreamError(status, 0, answer.headers.description)

    async def delete_message(self, stream: str, sequence: int) -> None:
        """Delete a message of a stream.

        Raises:
            NotFoundError: There is no such stream.
            JetStreamError: There is no such message, or it may not be deleted.
            TransportError: As `call`.
        """
        await self.call(f"STREAM.MSG.DELETE.{token(stream)}", {"seq": sequence, "no_erase": True})

    # --- consumers -------------------------------------------------------------------------------

    async def create_consumer(
        self,
        stream: str,
        config: ConsumerConfig,
        *,
        action: Literal["create", "update", ""] = "",
    ) -> ConsumerInfo:
        """Create a consumer, or change it.

        Args:
            stream: The stream's name.
            config: The configuration; one without a name gets one that nobody else has.
            action: `create` only a new one, `update` only one that exists; by default either.

        Raises:
            NotFoundError: There is no such stream.
            JetStreamError: The server cannot.
            TransportError: As `call`.
        """
        if config.name is None:
            config = attrs.evolve(config, name=config.durable or secrets.token_hex(11))
        name = f"CONSUMER.CREATE.{token(stream)}.{token(str(config.name))}"
        body = {"stream_name": stream, "config": config.to_json(), "action": action}
        return decoded(ConsumerInfo.from_json, await self.call(name, body))

    async def consumer_info(self, stream: str, name: str) -> ConsumerInfo:
        """Return what the server says of a consumer.

        Raises:
            NotFoundError: There is none.
            TransportError: As `call`.
        """
        return decoded(
            ConsumerInfo.from_json, await self.call(f"CONSUMER.INFO.{token(stream)}.{token(name)}")
        )

    async def consumer_names(self, stream: str) -> list[str]:
        """Return the names of a stream's consumers.

        Raises:
            NotFoundError: There is no such stream.
            TransportError: As `call`.
        """
        return await self._listed(f"CONSUMER.NAMES.{token(stream)}", "consumers", {})

    async def delete_consumer(self, stream: str, name: str) -> None:
        """Delete a consumer.

        Raises:
            NotFoundError: There is none.
            TransportError: As `call`.
        """
        await self.call(f"CONSUMER.DELETE.{token(stream)}.{token(name)}")

    async def _listed(self, name: str, part: str, body: dict[str, Any]) -> list[str]:
        names: list[str] = []
        while True:
            found = await self.call(name, body | {"offset": len(names)})
            page = decoded(lambda each: list(map(str, each.get(part) or ())), found)
            names += page
            if not page or len(names) >= decoded(lambda each: int(each["total"]), found):
                return names

    # --- publishing ------------------------------------------------------------------------------

    async def publish(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        headers: HeadersToSend | None = None,
        message_id: str | None = None,
        expect_last: int | None = None,
        expect_last_for_subject: int | None = None,
        ttl: float | None = None,
    ) -> PubAck:
        """Publish a message, and wait until its stream has it on a quorum of its replicas.

        Args:
            subject: The subject; a stream has to keep it.
            payload: The payload.
            headers: Headers.
            message_id: An identifier: the stream takes a second message with it for the same one,
                within its `duplicate_window`. So this repeats the publication if the connection is
                lost before the answer.
            expect_last: The sequence of the stream's last message, or it is refused.
            expect_last_for_subject: The same for the last one of this subject; 0: none.
            ttl: Seconds, at least 1, after which the message expires; the stream needs
                `allow_message_ttl`.

        Cancellation: the stream may have it, or get it still.

        Raises:
            WrongSequenceError: Another message came first.
            StreamFullError: The stream has no room.
            JetStreamError: The stream refuses it for another reason.
            NoRespondersError: No stream keeps the subject, or nobody leads it just now.
            ConnectionLostError: The connection ended first, and there is no `message_id`.
            NoAnswerError, LocalProtocolError: As `NatsClient.request`.
        """
        all_headers = publication_headers(
            headers, message_id, expect_last, expect_last_for_subject, ttl
        )
        while True:
            try:
                return pub_ack(await self._request(subject, payload, all_headers))
            except ConnectionLostError:
                if message_id is None:
                    raise

    def publish_nowait(
        self,
        subject: str,
        payload: bytes,
        done: Callable[[PubAck | TransportError], object],
        *,
        headers: HeadersToSend | None = None,
        message_id: str | None = None,
    ) -> str:
        """Publish a message; a callback takes the stream's word. For many at once.

        Args:
            subject, payload, headers, message_id: As for `publish`; nothing is repeated.
            done: Called once, from the task that reads: with the server's word, or with what
                `publish` would raise. It must not block. Without an answer it is called when the
                connection is lost.

        Returns:
            The subject of the answer, for `NatsClient.forget`.

        Raises:
            trio.WouldBlock, LocalProtocolError: As `NatsClient.publish_nowait`.
        """

        def answered(found: Message | TransportError) -> None:
            outcome: PubAck | TransportError
            if isinstance(found, Message):
                try:
                    outcome = pub_ack(found)
                except TransportError as error:
                    outcome = error
            else:
                outcome = found
            done(outcome)

        return self.nats.ask_nowait(
            subject, payload, answered, headers=publication_headers(headers, message_id)
        )


def publication_headers(
    headers: HeadersToSend | None,
    message_id: str | None = None,
    expect_last: int | None = None,
    expect_last_for_subject: int | None = None,
    ttl: float | None = None,
) -> HeadersToSend | None:
    """Return the headers of a publication, with those that its stream heeds."""
    found: dict[str, Any] = dict(headers or {})
    if message_id is not None:
        found["Nats-Msg-Id"] = message_id
    if expect_last is not None:
        found["Nats-Expected-Last-Sequence"] = str(expect_last)
    if expect_last_for_subject is not None:
        found["Nats-Expected-Last-Subject-Sequence"] = str(expect_last_for_subject)
    if ttl is not None:
        found["Nats-TTL"] = f"{round(ttl * 1000)}ms"
    return found or None


def pub_ack(answer: Message) -> PubAck:
    """Return the server's word for a publication.

    Raises:
        JetStreamError: The stream refuses it.
        NoRespondersError: No stream keeps the subject.
        RemoteProtocolError: It is no such answer.
    """
    if answer.status == NO_RESPONDERS:
        raise NoRespondersError("no stream keeps the subject, or nobody leads it just now")
    found = _answer_of(answer)
    stream, sequence = found.get("stream"), found.get("seq")
    if not isinstance(stream, str) or not isinstance(sequence, int):
        raise RemoteProtocolError(f"this is no answer to a publication: {answer.payload[:80]!r}")
    return PubAck(stream, sequence, bool(found.get("duplicate")))


def token(name: str) -> str:
    """Return a name that is one token of a subject.

    Raises:
        LocalProtocolError: It is none.
    """
    if not name or not name.isprintable() or any(each in " .*>/\\" for each in name):
        raise LocalProtocolError(
            f"{name!r} is no name of a stream or consumer: it has to be without blanks, dots, "
            "wildcards and slashes"
        )
    return name


def _answer_of(answer: Message) -> dict[str, Any]:
    try:
        found = json.loads(answer.payload)
    except (ValueError, RecursionError) as error:
        raise RemoteProtocolError(f"JetStream's answer has to be JSON: {error}") from error
    if not isinstance(found, dict):
        raise RemoteProtocolError("JetStream's answer has to be a JSON object")
    answered = cast("dict[str, Any]", found)
    if isinstance(answered.get("error"), dict):
        raise error_of(answered["error"])
    return answered


def _by_leader(stream: str, found: Mapping[str, Any]) -> Stored:
    block = base64.b64decode(found.get("hdrs") or "")
    return Stored(
        stream,
        found["seq"],
        seconds_of(found["time"]),
        found["subject"],
        base64.b64decode(found.get("data") or ""),
        decode_headers(block) if block else NO_HEADERS,
    )
