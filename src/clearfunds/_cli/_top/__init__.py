"""`clearfunds top`: who owes, who holds, who waits on whom, in a terminal."""

from ._command import top as top
