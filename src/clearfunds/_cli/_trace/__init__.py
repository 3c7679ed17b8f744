"""`clearfunds trace`: what an account's next event causes, to its end, in a terminal."""

from ._command import trace as trace
