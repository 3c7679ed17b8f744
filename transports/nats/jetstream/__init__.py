"""JetStream: streams, consumers that are asked for messages, and keys with values."""
