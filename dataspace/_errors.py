"""Errors of a dataspace. All of them are local misuse."""


class DataspaceError(Exception):
    """A dataspace was used in a way that it cannot follow."""


class PatternError(DataspaceError, ValueError):
    """Something cannot be used as a pattern, or is not a well-formed topic filter."""


class NotAssertedError(DataspaceError):
    """An assertion or an observation was taken back twice."""


class MailboxClosedError(DataspaceError):
    """The mailbox is closed and empty; nothing will arrive any more."""


class GivenUpError(MailboxClosedError):
    """The mailbox made no progress while others waited on it, and was given up (rule 11)."""


class TooManyShapesError(DataspaceError):
    """Patterns of too many different shapes are observed; routing a value looks at them all."""
