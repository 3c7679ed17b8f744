"""Errors of a queue. All of them are misuse, by a program or by a peer."""

from .._errors import DataspaceError


class QueueError(DataspaceError):
    """A queue was used in a way that it cannot follow."""


class UnknownTagError(QueueError):
    """A delivery tag was acknowledged that is not outstanding: never given, or settled before.

    In AMQP it ends the channel: 406, PRECONDITION_FAILED.
    """


class QueueInUseError(QueueError):
    """A queue has consumers where it should have none: for an exclusive one, or to be deleted."""


class QueueNotEmptyError(QueueError):
    """A queue that was to be deleted if it is empty is not."""


class QueueDeletedError(QueueError):
    """The queue is deleted, or the channel is closed."""


class QueueLockedError(QueueError):
    """The queue is exclusive to another connection.

    In AMQP it ends the channel: 405, RESOURCE_LOCKED.
    """
