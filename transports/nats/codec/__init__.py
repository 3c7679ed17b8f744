"""The wire format of NATS, without I/O."""
