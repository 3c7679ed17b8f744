"""`clearfunds report`: a page, tables and recommended limits, made from a journal.

Importing this needs neither PySpark nor pyarrow; each function says if one is missing.
"""

from .._errors import PipelineError as PipelineError
from ._run import DEFAULT_LOCAL_UP_TO as DEFAULT_LOCAL_UP_TO
from ._run import EngineName as EngineName
from ._run import Engines as Engines
from ._run import Written as Written
from ._run import follow_report as follow_report
from ._run import write_report as write_report
