"""The errors of a cluster."""

from ..transports import TransportError


class ClusterError(TransportError):
    """The cluster cannot be joined: the message says why, and what to do."""


class NameTakenError(ClusterError):
    """Another relay of the cluster has this one's name."""
