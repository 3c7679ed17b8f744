"""A link that loses and delays, without rights: `unshare -rn python -m tests.relay.lossy_link ...`.

Arguments: the share of packets that is lost, the seconds that each takes, and a command. The
command runs in a network of its own, in which this host can also be reached as `FAR`: packets to
there go through a device of this process (TUN), which loses some, delays the others, and sends them
back with their addresses exchanged. (That leaves their checksums right.) So both ends of such a
connection are on this host, with a real network between them.

Linux's own tool for this is netem, which not every kernel has.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import struct
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Final

NEAR: Final = "10.9.0.1"
FAR: Final = "10.9.0.2"

TUNSETIFF: Final = 0x400454CA
IFF_TUN, IFF_NO_PI = 1, 0x1000
PACKET_BYTES: Final = 1 << 16


def open_device() -> int:
    """Open the device, and give it the address of the near end."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH22x", b"lossy", IFF_TUN | IFF_NO_PI))
    for arguments in (
        ("link", "set", "lo", "up"),
        ("addr", "add", f"{NEAR}/24", "dev", "lossy"),
        ("link", "set", "lossy", "up", "mtu", "1500"),
    ):
        subprocess.run(["ip", *arguments], check=True)
    # Others (BBR) do not mind loss, and fill the queue of the device, which then loses much more.
    Path("/proc/sys/net/ipv4/tcp_congestion_control").write_text("reno")
    return device


def turned(packet: bytes) -> bytes:
    """Exchange the addresses of an IPv4 packet."""
    return packet[:12] + packet[16:20] + packet[12:16] + packet[20:]


def carry(device: int, loss: float, delay: float, process: subprocess.Popen[bytes]) -> int:
    """Carry packets until the process has ended; return its status."""
    chance = random.Random(26)
    under_way: deque[tuple[float, bytes]] = deque()
    while process.poll() is None:
        now = time.monotonic()
        while under_way and under_way[0][0] <= now:
            os.write(device, turned(under_way.popleft()[1]))
        pause = under_way[0][0] - now if under_way else 0.1
        if select.select([device], [], [], max(0.0, pause))[0]:
            packet = os.read(device, PACKET_BYTES)
            if packet[0] >> 4 == 4 and chance.random() >= loss:
                under_way.append((time.monotonic() + delay, packet))
    return process.returncode


def main() -> int:
    loss, delay, *command = sys.argv[1:]
    device = open_device()
    with subprocess.Popen(command) as process:
        return carry(device, float(loss), float(delay), process)


if __name__ == "__main__":
    sys.exit(main())
