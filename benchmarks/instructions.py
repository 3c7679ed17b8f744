"""CPU instructions of the relay for each write of a publisher, counted by valgrind.

A machine with other work cannot time a difference of 3 %. The number of instructions does not
depend on other work: it differs by a few per mille from run to run. It leaves out the kernel's part
and what caches cost.

    python benchmarks/instructions.py                    # this checkout, a minute and a half
    python benchmarks/instructions.py --other CHECKOUT   # and another one, and the ratio

A publisher writes, the subscribers read all of it, and then it writes again: so each checkout does
exactly the same. What is counted is the difference between a long run and a short one, so starting
and stopping do not count.

    pipelined-1, pipelined-9   310 messages of 200 bytes in each write
    one-9                      one message in each write
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import attrs

if not __package__:  # run as a file: the root is not yet where modules are looked for
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.clients import WIRES
from benchmarks.servers import free_port
from clearfunds.transports.mqtt import Publish, encode

ROOT: Final = Path(__file__).resolve().parent.parent
WIRE: Final = WIRES["mqtt"]
PAYLOAD: Final = 190
PIPELINED: Final = 310
SHORT: Final = 200
LONG: Final = 1_200
"""Writes of the two runs."""
START_SECONDS: Final = 120.0
"""Valgrind takes fifty times as long as the relay alone."""
COUNTED: Final = re.compile(r"I +refs: +([\d,]+)")


@attrs.frozen
class Regime:
    """One kind of load."""

    subscribers: int
    messages: int
    """In each write."""


REGIMES: Final = {
    "pipelined-1": Regime(1, PIPELINED),
    "pipelined-9": Regime(9, PIPELINED),
    "one-9": Regime(9, 1),
}


def counted(checkout: Path, regime: Regime, writes: int, scratch: Path) -> int:
    """Return the instructions of one run.

    Raises:
        RuntimeError: The relay ended before it should, or valgrind said nothing.
    """
    port = free_port()
    environment = {**os.environ, "PYTHONPATH": str(checkout / "src"), "PYTHONHASHSEED": "0"}
    command = [
        "valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null",
        sys.executable, "-m", "clearfunds", "relay", f"--listen=mqtt+tcp://127.0.0.1:{port}",
    ]  # fmt: skip
    log = scratch / "valgrind.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    try:
        drive(port, process, regime, writes)
        process.send_signal(signal.SIGINT)
        process.wait(START_SECONDS)
    finally:
        process.kill()
        process.wait()
    found = COUNTED.search(log.read_text(errors="replace"))
    if found is None:
        raise RuntimeError(f"valgrind did not count; the end of its log:\n{log.read_text()[-600:]}")
    return int(found[1].replace(",", ""))


def drive(port: int, process: subprocess.Popen[bytes], regime: Regime, writes: int) -> None:
    """Write so often, and wait each time until everybody has all of it.

    Raises:
        RuntimeError: The relay has ended.
    """
    names = [f"reader-{number}" for number in range(regime.subscribers)]
    deadline = time.monotonic() + START_SECONDS
    while True:
        try:
            subscribers = [connect(port, name, WIRE.topic) for name in names]
            break
        except OSError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("the relay does not listen") from None
            time.sleep(0.2)
    with connect(port, "publisher", None) as publisher, ExitStack() as stack:
        for each in subscribers:
            stack.enter_context(each)
        data = encode(Publish(WIRE.topic, bytes(PAYLOAD))) * regime.messages
        for _ in range(writes):
            publisher.sendall(data)
            for each in subscribers:
                left = len(data)
                while left:
                    left -= len(each.recv(left))


def connect(port: int, name: str, filter_: str | None) -> socket.socket:
    """Connect as an MQTT client, and subscribe."""
    sock = socket.create_connection(("127.0.0.1", port))
    sock.sendall(WIRE.hello(name, filter_))
    got = b""
    while not WIRE.welcomed(got, filter_ is not None):
        got += sock.recv(64)
    return sock


def measured(checkout: Path, regime: Regime) -> float:
    """Return the instructions for each write, in thousands."""
    with tempfile.TemporaryDirectory() as scratch:
        short = counted(checkout, regime, SHORT, Path(scratch))
        long = counted(checkout, regime, LONG, Path(scratch))
    return (long - short) / (LONG - SHORT) / 1e3


def main() -> int:
    """Measure and print; return the exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--other", type=Path, help="another checkout, to compare with")
    parser.add_argument("--regimes", default=",".join(REGIMES), help="names, with commas (all)")
    options = parser.parse_args()
    if shutil.which("valgrind") is None:
        sys.exit("instructions: valgrind is not installed (apt install valgrind)")
    print(
        "| load | thousand instructions a write |" + (" other | ratio |" if options.other else "")
    )
    print("| - | -: |" + (" -: | -: |" if options.other else ""))
    for name in options.regimes.split(","):
        here = measured(ROOT, REGIMES[name])
        line = f"| {name} | {here:,.1f} |"
        if options.other is not None:
            there = measured(options.other.resolve(), REGIMES[name])
            line += f" {there:,.1f} | {here / there:.3f} |"
        print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
