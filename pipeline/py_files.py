"""The modules that Spark's workers need of clearfunds, as one file for `--py-files`.

If clearfunds is not installed on a cluster's machines::

    python -m clearfunds.pipeline.py_files clearfunds.zip
    spark-submit --py-files clearfunds.zip query.py

The source and the sink need only the standard library, and pyarrow, which Spark itself needs there.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from pathlib import Path

from ._errors import PipelineError

_DISCOVERED = "pyspark_clearfunds.py"


def write_py_files(path: str | Path) -> Path:
    """Write a zip file with the pipeline and the blocking clients of a relay; return its path.

    Args:
        path: The file's path; an existing file is overwritten.

    Raises:
        PipelineError: If it cannot be written, or Python cannot import from a file of that name.
    """
    target = Path(path)
    if target.suffix not in (".zip", ".egg"):
        raise PipelineError(f"{target} must end in .zip, or Spark does not put it on sys.path")
    # Not resolved: in a checkout, the folders are links beside each other.
    pipeline = Path(__file__).parent
    root = pipeline.parent
    try:
        with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
            for source in (root / "__init__.py", root / "ranges" / "__init__.py"):
                archive.write(source, f"clearfunds/{source.relative_to(root)}")
            for folder in (pipeline, root / "ranges" / "wire", root / "ranges" / "client"):
                for source in sorted(folder.rglob("*.py")):
                    archive.write(source, f"clearfunds/{source.relative_to(root)}")
            archive.write(root.parent / _DISCOVERED, _DISCOVERED)
    except OSError as exc:
        raise PipelineError(f"{target} cannot be written: {exc}") from exc
    return target


def main(argv: list[str] | None = None) -> None:
    """Write the file named on the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m clearfunds.pipeline.py_files",
        description="Write the modules that Spark's workers need, for spark-submit --py-files.",
    )
    parser.add_argument("path", help="the file to write, as clearfunds.zip")
    try:
        print(write_py_files(parser.parse_args(argv).path))
    except PipelineError as exc:
        sys.exit(str(exc))


if __name__ == "__main__":
    main()
