"""Analysis of the journal's tables: functions from DataFrames to DataFrames. They need PySpark.

The same functions work in batch queries and over streams where the result can be sound. Each says
which output mode it allows.
"""

from ._debt import debt_over_time as debt_over_time
from ._debt import peak_debt as peak_debt
from ._hold import hold_percentiles as hold_percentiles
from ._limits import recommended_limits as recommended_limits
from ._open_loans import still_open as still_open
from ._read import Tables as Tables
from ._read import read as read
from ._read import read_stream as read_stream
from ._running import running_debt as running_debt
from ._sums import blame as blame
from ._sums import fairness as fairness
from ._sums import fan_out as fan_out
from ._sums import stall_time as stall_time
from ._sums import tenant_of as tenant_of
