"""Sentences about mistakes on the command line: what is wrong, where, and what to do."""

import difflib
import inspect
import shlex
from collections.abc import Callable
from types import UnionType
from typing import Any, Final, Literal, Union, cast, get_args, get_origin

from cyclopts import (
    CoercionError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnusedCliTokensError,
)

_INSTEAD: Final = {"relay": "--listen {}", "pub": "--message {}", "perf": "--url URL"}
"""Options that a stray positional argument is probably meant for. (A URL may hold a password.)"""

_KINDS: Final[dict[Any, str]] = {
    bool: 'neither "true" nor "false"',
    int: "not a whole number",
    float: "not a number",
}


def one_line(error: Exception) -> str:
    """Return the sentence about a mistake, in one line."""
    text = _sentence(error)
    # cyclopts names an option's origin in some of its messages and not in others.
    token = getattr(error, "token", None)
    if token is not None and token.source not in ("", "cli", "env") and token.source not in text:
        text = f"{text} (from {token.source})"
    return text


def _sentence(error: Exception) -> str:
    if isinstance(error, UnusedCliTokensError):
        return _too_many(error)
    if isinstance(error, MissingArgumentError):
        return _missing(error)
    if isinstance(error, RepeatArgumentError):
        return f"{error.token.keyword} is given more than once: give it once"
    if isinstance(error, CoercionError) and error.msg is None:
        kind = _KINDS.get(error.target_type) or _choices(error.target_type)
        if kind is not None:
            return _another_kind(error, kind)
    if isinstance(error, UnknownCommandError) and error.unused_tokens:
        option = error.unused_tokens[0]
        if option.startswith("-"):
            return f"options come after the command: give it first, then {option}"
    return " ".join(str(error).split())


def _too_many(error: UnusedCliTokensError) -> str:
    """Return the message for positional arguments that a command does not take."""
    command = " ".join(error.command_chain or ())
    target = cast("Callable[..., object]", getattr(error, "target"))  # noqa: B009  (not typed)
    parameters = inspect.signature(target).parameters.values()
    most = sum(each.kind is not each.KEYWORD_ONLY for each in parameters)
    if most:
        # The argument is not quoted: a third one of `passwd` may be a password.
        return f"{command} takes at most {most} positional argument{'' if most == 1 else 's'}"
    text = f"{command} takes no positional arguments"
    if command in _INSTEAD and error.unused_tokens:
        text += f"; did you mean {_INSTEAD[command].format(shlex.quote(error.unused_tokens[0]))}?"
    return text


def _missing(error: MissingArgumentError) -> str:
    argument = error.argument
    if argument is None:
        return "a value is missing: give one"
    given = error.keyword or next((each.keyword for each in argument.tokens if each.keyword), None)
    if given is not None:
        return f"{given} needs a value: give one after it"
    options = [each for each in error.unused_tokens or () if each.startswith("--")]
    close = difflib.get_close_matches(argument.name, options, n=1)
    if close:
        return f"{close[0]} is not an option; did you mean {argument.name}?"
    command = " ".join(error.command_chain or ())
    return f"{argument.name} is missing: {command or 'this command'} needs it"


def _choices(kind: object) -> str | None:
    """Return the words of a union of choices; None if it is something else.

    cyclopts has a sentence for a choice alone, and the types' names for a union.
    """
    parts = get_args(kind) if get_origin(kind) in (Union, UnionType) else ()
    if not parts or any(get_origin(part) is not Literal for part in parts):
        return None
    words = (word for part in parts for word in get_args(part))
    return "none of " + ", ".join(f'"{word}"' for word in words)


def _another_kind(error: CoercionError, kind: str) -> str:
    token, argument = error.token, error.argument
    name = (token and token.keyword) or (argument and argument.name) or "a value"
    value = f'"{token.value}"' if token else "its value"
    return f"Invalid value for {name}: {value} is {kind}."
