"""The command line: `clearfunds relay|pub|sub|demo`."""

from ._app import run as run
