"""The keeper of a client: sends pings, and notices a server that does not answer (3.1.2.10)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

from ..._send_buffer import SendBuffer
from ..codec._packets import PingReq, encode

#: A client pings after this part of its keep-alive; the rest allows for the way to the server.
_PING_AFTER = 0.75

_PINGREQ: Final = encode(PingReq())


class KeepAlive:
    """Sends PINGREQ in time.

    Args:
        send: The client's send buffer.
        seconds: Seconds; 0: no pings.
        ping_timeout: Seconds without a byte after which an unanswered ping means that the server
            is gone.
        is_reading: Tells whether the client reads its socket.
        on_silence: Called with a sentence when the server is gone.
    """

    __slots__ = ("_is_reading", "_on_silence", "_pinged_at", "_send", "_timeout", "seconds")

    def __init__(
        self,
        send: SendBuffer,
        seconds: int,
        ping_timeout: float,
        is_reading: Callable[[], bool],
        on_silence: Callable[[str], object],
    ) -> None:
        self._send = send
        self.seconds = seconds
        self._timeout = ping_timeout
        self._is_reading = is_reading
        self._on_silence = on_silence
        self._pinged_at: float | None = None

    def heard(self) -> None:
        """Note that the server sent something: that answers any ping."""
        self._pinged_at = None

    def passed_over(self) -> None:
        """Note that the client did not read for a while: that time does not count as silence."""
        if self._pinged_at is not None:
            self._pinged_at = trio.current_time()

    async def run(self, ended: trio.Event) -> None:
        """Ping until `ended` is set, or the server is gone.

        [MQTT-3.1.2-23]. The server's silence means nothing while a write is pending (that may be
        backpressure), or while the client does not read because its buffer of messages is full.
        """
        send = self._send
        interval = self.seconds * _PING_AFTER
        while not ended.is_set():
            now = trio.current_time()
            if self._pinged_at is not None:
                if send.writing or not self._is_reading():
                    self._pinged_at = now
                elif now - self._pinged_at >= self._timeout:
                    self._on_silence(
                        f"the server has not answered a ping for {self._timeout:g} s "
                        "(section 3.12.4)"
                    )
                    return
            if not send.writing and now - send.last_written >= interval:
                send.put(_PINGREQ)
                if self._pinged_at is None:
                    self._pinged_at = now
            wake_at = send.last_written + interval
            if wake_at <= now:
                wake_at = now + interval
            if self._pinged_at is not None:
                wake_at = min(wake_at, self._pinged_at + self._timeout)
            await trio.sleep_until(wake_at)
