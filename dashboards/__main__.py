"""Write the dashboards, the rules and the tables of the README, or check that they are fresh."""

from __future__ import annotations

import sys

from ._files import FOLDER, generated


def main(argv: list[str]) -> int:
    """Write the files that changed; with `--check`, only name them and return 1."""
    if argv not in ([], ["--check"]):
        print("usage: python -m dashboards [--check]", file=sys.stderr)
        return 2
    stale = 0
    for name, text in generated().items():
        path = FOLDER / name
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale += 1
        if argv:
            print(f"dashboards/{name} is not up to date: run `make dashboards`")
        else:
            path.write_text(text, encoding="utf-8")
            print(f"dashboards/{name} written")
    return 1 if argv and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
