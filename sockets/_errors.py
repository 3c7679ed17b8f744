"""The base of the errors of connections."""


class TransportError(Exception):
    """Something went wrong on the way between this process and a peer."""
