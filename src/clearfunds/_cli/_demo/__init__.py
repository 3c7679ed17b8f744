"""`clearfunds demo`: a month of real flights through a real relay, to nine subscribers."""

from ._command import demo as demo
