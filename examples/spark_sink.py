"""Readings come by MQTT; Spark finds those that are too hot, and publishes an alarm for each.

    clearfunds relay --listen mqtt+tcp://127.0.0.1:1883 --listen subscribe+tcp://127.0.0.1:7700
    python examples/spark_sink.py 127.0.0.1:7700 --checkpoint /tmp/hot
    mosquitto_sub -t 'alarms/#' -v
    mosquitto_pub -t readings/kiln -m '{"celsius": 96.5}'

Publish once the relay has logged that the query has `attached` to the subscription hot-readings,
which takes some seconds: messages from before the first time are not seen.

Backpressure goes through all of it: publishers of readings wait when Spark is slow, and Spark waits
when the readers of the alarms are slow. Kill it and start it again with the same checkpoint: each
alarm has been published once.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f


def alarms(readings: DataFrame, limit: float) -> DataFrame:
    """Return a message, with topic and value, for each reading above the limit."""
    celsius = f.get_json_object(f.col("value").cast("string"), "$.celsius").cast("double")
    hot = readings.withColumn("celsius", celsius).where(f.col("celsius") > limit)
    return hot.select(
        f.regexp_replace("topic", "^readings/", "alarms/").alias("topic"),
        f.to_json(f.struct("celsius", "timestamp")).alias("value"),
    )


def main() -> None:
    """Run until interrupted; with `--once`, until all present messages are done."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("relay", help="HOST:PORT of its listener subscribe+tcp")
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="folder for Spark's position"
    )
    parser.add_argument("--limit", type=float, default=90.0, help="degrees Celsius")
    parser.add_argument("--once", action="store_true", help="end when present messages are done")
    options = parser.parse_args()

    # Spark's workers must run this Python: another one may lack the packages needed.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.appName("hot-readings")
        .config("spark.log.level", "ERROR")
        .config("spark.ui.showConsoleProgress", "false")
        .getOrCreate()
    )
    readings = (
        spark.readStream.format("clearfunds")
        .option("relay", options.relay)
        .option("subscription", "hot-readings")
        .option("subscribe", "readings/#")
        .load()
    )
    writer = (
        alarms(readings, options.limit)
        .writeStream.format("clearfunds")
        .option("relay", options.relay)
        .option("checkpointLocation", str(options.checkpoint))
    )
    if options.once:
        query = writer.trigger(availableNow=True).start()
    else:
        query = writer.trigger(processingTime="1 second").start()
    try:
        query.awaitTermination()
    except KeyboardInterrupt:
        query.stop()
    finally:
        spark.stop()


if __name__ == "__main__":
    main()
