"""The command line: `clearfunds relay|pub|sub|mint|demo`."""

from ._app import run as run
