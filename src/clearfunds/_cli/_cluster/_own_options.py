"""The command line of a worker: the user's, with options of its own in place of some."""

from collections.abc import Mapping, Sequence

Value = str | Sequence[str] | None
"""A value, the values of an option that is given several times, or None: the option has none."""


def with_own(argv: Sequence[str], own: Mapping[str, Value]) -> list[str]:
    """Return a command line with options in place of those of the same names.

    Args:
        argv: A command line; the command has no positional arguments.
        own: The options, as `store`, with their values.
    """
    rest: list[str] = []
    arguments = iter(argv)
    for argument in arguments:
        option, has_value, _ = argument.partition("=")
        name = option.removeprefix("--").replace("_", "-").lower()
        if not option.startswith("--") or name not in own:
            rest.append(argument)
        elif not has_value and own[name] is not None:
            next(arguments, None)
    for name, value in own.items():
        if value is None:
            rest.append(f"--{name}")
        else:
            values = (value,) if isinstance(value, str) else value
            rest += (f"--{name}={each}" for each in values)
    return rest
