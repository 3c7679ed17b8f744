"""The two ways in which a command ends badly; each is one line on stderr."""


class UsageError(Exception):
    """The command was called wrongly: exit status 2."""


class CommandFailedError(Exception):
    """The command was called rightly and could not do it: exit status 1."""
