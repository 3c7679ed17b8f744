"""The access control list of a relay: its rules, the file they come from, and reading it again."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ._rules import AclRules, parse_acl


class Acl:
    """Rules that may be read again from their file.

    Made by `from_file` or `from_text`.

    Attributes:
        rules: The present ones.
        on_change: Called when they have changed. What it raises is raised by `reload`, after all
            of them have been called.
    """

    __slots__ = ("_file", "on_change", "rules")

    def __init__(self, rules: AclRules, file: Path | None = None) -> None:
        self.rules = rules
        self.on_change: list[Callable[[], object]] = []
        self._file = file

    def __repr__(self) -> str:
        return f"<Acl: {len(self)} rules, {self._file or 'of a text'}>"

    def __len__(self) -> int:
        """Return how many rules there are."""
        return len(self.rules)

    @classmethod
    def from_text(cls, text: str) -> Acl:
        """Take the rules in a text.

        Raises:
            AclFileError: It has something else in it.
        """
        return cls(parse_acl(text))

    @classmethod
    def from_file(cls, file: Path | str) -> Acl:
        """Read the rules in a file.

        Raises:
            OSError: It cannot be read.
            AclFileError: It has something else in it.
        """
        file = Path(file)
        return cls(_read(file), file)

    def reload(self) -> None:
        """Read the file again, if they come from one; what is no longer allowed ends at once.

        Raises:
            OSError: It cannot be read; the rules are those of before.
            AclFileError: It has something else in it; likewise.
        """
        if self._file is not None:
            self.replace(_read(self._file))

    def replace(self, rules: AclRules) -> None:
        """Let these rules be in force from now on."""
        self.rules = rules
        for changed in list(self.on_change):
            changed()


def _read(file: Path) -> AclRules:
    # What is no UTF-8 is found line by line.
    return parse_acl(file.read_bytes().decode(errors="surrogateescape"), f"{file}, ")
