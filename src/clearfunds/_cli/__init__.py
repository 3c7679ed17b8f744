"""The command line, `clearfunds COMMAND`.

- `relay`: runs a relay, a server of MQTT and Syndicate.
- `pub`: publishes MQTT messages.
- `sub`: subscribes over MQTT and prints messages.
- `top`: monitors a relay.
- `queues`: inspects AMQP queues.
- `ctl`: changes a running relay.
- `config`: checks and shows a configuration.
- `trace`: traces an account's next event to its last subscriber.
- `mint`: makes keys and sturdyrefs for Syndicate clients.
- `passwd`: sets passwords of MQTT users.
- `store`: inspects and repairs a relay's store.
- `report`: analyses a relay's journal.
- `perf`: load-tests any MQTT server.
- `demo`: shows backpressure with flights and one slow subscriber.
"""

from ._app import run as run
