"""Analysis of costs: a journal of settlements in Parquet, a report, a Spark source and sink.

Importing this package imports no part of it: `journal` needs pyarrow, the others PySpark. Each part
says what to install if something is missing.
"""
