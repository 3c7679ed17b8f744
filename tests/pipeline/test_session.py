"""That there is a Spark to test with: a JVM that answers, and Python workers that are ours."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_spark_runs_this_interpreter(spark: "SparkSession") -> None:
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType

    # Spark takes hints of types for those of Arrow's arrays.
    def version(_):  # type: ignore[no-untyped-def]  # pyright: ignore
        return sys.version

    which = f.udf(version, StringType())  # pyright: ignore[reportUnknownArgumentType]
    rows = spark.range(4).select(which("id").alias("version")).distinct().collect()
    assert [row.version for row in rows] == [sys.version]
