"""What it cost: settlements as Parquet, read by PySpark; a Spark source and a Spark sink.

Importing this imports nothing: its parts need different things (`journal` pyarrow, the others
PySpark), and each says what to install where it is missing.
"""
