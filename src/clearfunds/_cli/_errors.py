"""The two ways in which a command ends badly; each is one line on stderr."""


class UsageError(Exception):
    """The command was used wrongly: exit status 2."""


class CommandFailedError(Exception):
    """The command was used correctly and failed: exit status 1."""
