"""A relay with a store in a process of its own, to be killed: `relay_process.py STORE`."""

import sys
from pathlib import Path

import trio

from clearfunds.store import Store, StoreSettings
from tests.ranges.server.relays import running


async def main() -> None:
    """Run until killed; say where."""
    store = Store.open(Path(sys.argv[1]), StoreSettings(fsync_interval=0.02))
    async with running(store=store) as relay:
        print(relay.port, relay.mqtt_port, flush=True)
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main)
