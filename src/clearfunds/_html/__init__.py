"""Self-contained pages for the reports of `perf` and `pipeline`: frame, style, tables and plots.

A page loads no other file and has no script. The standard library only, and nothing of clearfunds:
the pipeline imports no layer.
"""

from ._document import bad as bad
from ._document import document as document
from ._document import section as section
from ._document import table as table
from ._plot import COLOURS as COLOURS
from ._plot import Scale as Scale
from ._plot import Series as Series
from ._plot import colour as colour
from ._plot import legend as legend
from ._plot import linear as linear
from ._plot import logarithmic as logarithmic
from ._plot import moments as moments
from ._plot import plot as plot
from ._plot import svg as svg
from ._readable import NOTHING as NOTHING
from ._readable import count as count
from ._readable import day as day
from ._readable import duration as duration
from ._readable import moment as moment
from ._readable import name as name
from ._readable import percent as percent
from ._readable import period as period
from ._readable import plural as plural
from ._readable import size as size
from ._readable import text as text
