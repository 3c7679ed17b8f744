"""MQTT packets, and the state of a connection: bytes only, no I/O."""
