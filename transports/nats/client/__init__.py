"""A NATS client on Trio."""
