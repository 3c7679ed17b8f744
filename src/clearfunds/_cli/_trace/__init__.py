"""`clearfunds trace`: the effects of an account's next event, to their end, in a terminal."""

from ._command import trace as trace
