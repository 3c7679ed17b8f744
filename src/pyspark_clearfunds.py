"""Lets Spark find the format `clearfunds` by itself: it imports all modules called `pyspark_...`.

It does so whichever format a query asks for, so this has to be quick.
"""

from clearfunds.pipeline._data_source import ClearFundsDataSource as DefaultSource

__all__ = ["DefaultSource"]
