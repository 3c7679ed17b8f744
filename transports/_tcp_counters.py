"""The kernel's counters of a TCP connection: Linux's `tcp_info`, where there is one.

The structure only grows, at its end, so fields stay where they are; an older kernel gives a shorter
one. Offsets are those of `struct tcp_info` in `include/uapi/linux/tcp.h`; its last field here,
`tcpi_dsack_dups`, came with Linux 4.19. Elsewhere the counters are unknown.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import TYPE_CHECKING, Final

from ..accounts import TcpCounters

if sys.platform == "linux":
    import fcntl
    import termios

if TYPE_CHECKING:
    from ..sockets._layer import Connected

SIZE: Final = 256
"""More than the fields below need; the kernel gives what it has of it."""

# Offsets in bytes, with the numbers' sizes. Times are in microseconds.
_U32: Final = struct.Struct("=I")
_U64: Final = struct.Struct("=Q")
_INT: Final = struct.Struct("@i")
_SND_MSS: Final = 16
_UNACKED: Final = 24
_RTT: Final = 68
_TOTAL_RETRANS: Final = 100
_BYTES_ACKED: Final = 120
_NOTSENT_BYTES: Final = 144
_BUSY_TIME: Final = 168
_RWND_LIMITED: Final = 176
_BYTES_SENT: Final = 200
_BYTES_RETRANS: Final = 208

_DSACK_DUPS: Final = 216

SIOCOUTQNSD: Final = 0x894B
"""`include/uapi/linux/sockios.h`: the output queue's size, of what is not sent; Python has no name
for it."""

LEAST: Final = _DSACK_DUPS + _U32.size


def parse_counters(info: bytes, unread: int = 0) -> TcpCounters | None:
    """Return the counters in a `tcp_info`; None if the kernel is too old to have them all.

    `unread` is the number of bytes that have come and were not read.
    """
    if len(info) < LEAST:
        return None

    def u32(offset: int) -> int:
        value: int = _U32.unpack_from(info, offset)[0]
        return value

    def u64(offset: int) -> int:
        value: int = _U64.unpack_from(info, offset)[0]
        return value

    segment = u32(_SND_MSS)
    return TcpCounters(
        busy_seconds=u64(_BUSY_TIME) / 1e6,
        shut_seconds=u64(_RWND_LIMITED) / 1e6,
        sent_bytes=u64(_BYTES_SENT),
        resent_bytes=max(0, u64(_BYTES_RETRANS) - u32(_DSACK_DUPS) * segment),
        retransmissions=u32(_TOTAL_RETRANS),
        acked_bytes=u64(_BYTES_ACKED),
        unsent_bytes=u32(_NOTSENT_BYTES),
        segment_bytes=segment,
        in_flight=u32(_UNACKED),
        round_trip_seconds=u32(_RTT) / 1e6,
        unread_bytes=unread,
    )


def read_unsent(sock: Connected) -> int:
    """Return how many bytes the kernel has taken and not sent yet; 0 if it does not say.

    Bytes under way, sent and unacknowledged, do not count.
    """
    if sys.platform != "linux":
        return 0
    try:
        return int(_INT.unpack(fcntl.ioctl(sock.fileno(), SIOCOUTQNSD, bytes(_INT.size)))[0])
    except (OSError, ValueError):  # a Unix socket; closed
        return 0


def read_counters(sock: Connected) -> TcpCounters | None:
    """Return the counters of a connection now; None if it has none, or there is no connection.

    A Unix socket has none.
    """
    if sys.platform != "linux":
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, SIZE)
        unread = _INT.unpack(fcntl.ioctl(sock.fileno(), termios.FIONREAD, bytes(_INT.size)))[0]
    except OSError:
        return None
    return parse_counters(info, unread)
