"""The access control list of a relay: its rules, their file, and reloading it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ._rules import AclRules, parse_acl


class Acl:
    """Rules that can be reloaded from their file.

    Made by `from_file` or `from_text`.

    Attributes:
        rules: The present rules.
        on_change: Called when they have changed. `reload` raises their exceptions after calling all
            of them.
    """

    __slots__ = ("_file", "on_change", "rules")

    def __init__(self, rules: AclRules, file: Path | None = None) -> None:
        self.rules = rules
        self.on_change: list[Callable[[], object]] = []
        self._file = file

    def __repr__(self) -> str:
        return f"<Acl: {len(self)} rules, {self._file or 'of a text'}>"

    def __len__(self) -> int:
        """Return the number of rules."""
        return len(self.rules)

    @classmethod
    def from_text(cls, text: str) -> Acl:
        """Parse rules from a text.

        Raises:
            AclFileError: The text is invalid.
        """
        return cls(parse_acl(text))

    @classmethod
    def from_file(cls, file: Path | str) -> Acl:
        """Read rules from a file.

        Raises:
            OSError: The file cannot be read.
            AclFileError: Its content is invalid.
        """
        file = Path(file)
        return cls(_read(file), file)

    def reload(self) -> None:
        """Read the file again, if there is one; accesses no longer allowed end at once.

        Raises:
            OSError: The file cannot be read; the rules stay unchanged.
            AclFileError: Its content is invalid; likewise.
        """
        if self._file is not None:
            self.replace(_read(self._file))

    def replace(self, rules: AclRules) -> None:
        """Put new rules into force."""
        self.rules = rules
        for changed in list(self.on_change):
            changed()


def _read(file: Path) -> AclRules:
    # Bytes that are not UTF-8 are reported by line.
    return parse_acl(file.read_bytes().decode(errors="surrogateescape"), f"{file}, ")
