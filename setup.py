"""The README for an index of packages, which has none of the files that it links to.

All else stands in pyproject.toml. With a `Source` in its `[project.urls]`, links to files of the
repository lead there, at the tag of the version; without one, their texts alone are left.
"""

import re
import tomllib
from pathlib import Path
from typing import Any

from setuptools import setup

_LINK = re.compile(r"(!?)\[([^\]]+)\]\((?![a-z]+:)([^)\s]+)\)")
"""A link, or an image, that leads to a file of the repository."""


def readme(text: str, project: dict[str, Any]) -> str:
    """Return a README without relative links.

    Args:
        text: The README, as Markdown.
        project: The table `[project]` of pyproject.toml.
    """
    source = project.get("urls", {}).get("Source")

    def absolute(match: re.Match[str]) -> str:
        image, words, target = match.groups()
        if source is None:
            return words
        kind = "raw" if image else "blob"
        file = f"README.md{target}" if target.startswith("#") else target
        return f"{image}[{words}]({source.rstrip('/')}/{kind}/v{project['version']}/{file})"

    return _LINK.sub(absolute, text)


if __name__ == "__main__":
    setup(
        long_description=readme(
            Path("README.md").read_text("utf-8"),
            tomllib.loads(Path("pyproject.toml").read_text("utf-8"))["project"],
        ),
        long_description_content_type="text/markdown",
    )
