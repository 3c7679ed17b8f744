"""`clearfunds top`: debts, holders and blocked accounts, in a terminal."""

from ._command import top as top
