"""The relay's journal as a pipeline: its growing tables, and the results of the ledger's functions.

The journal's tables are streaming tables: a run reads the files that are new since the last run,
each once. The others are computed again from them, by the same functions as in `clearfunds report`
and in any notebook.
"""

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

from clearfunds.pipeline import ledger

spark = SparkSession.active()
JOURNAL = str(spark.conf.get("spark.clearfunds.journal"))
TARGET_MS = float(str(spark.conf.get("spark.clearfunds.target_ms", "250")))


@dp.table(comment="Loans that ended: account, holder, amount, beginning and end.")
def settlements() -> DataFrame:
    """Read each file of the journal once."""
    return ledger.read_stream(spark, JOURNAL).settlements


@dp.table(comment="Messages that came in and were handed on.")
def publications() -> DataFrame:
    """Read each file of the journal once."""
    return ledger.read_stream(spark, JOURNAL).publications


@dp.table(comment="Stretches of waits, each with its culprit.")
def stalls() -> DataFrame:
    """Read each file of the journal once."""
    return ledger.read_stream(spark, JOURNAL).stalls


@dp.table(comment="Every account's statement, now and then.")
def accounts() -> DataFrame:
    """Read each file of the journal once."""
    return ledger.read_stream(spark, JOURNAL).accounts


@dp.table(comment="Changes of limits.")
def limits() -> DataFrame:
    """Read each file of the journal once."""
    return ledger.read_stream(spark, JOURNAL).limits


@dp.materialized_view(comment="What each account owed at the end of each second.")
def debt_over_time() -> DataFrame:
    """Compute it from all settlements so far."""
    return ledger.debt_over_time(spark.read.table("settlements"))


@dp.materialized_view(comment="The most that each account ever owed, and when.")
def peak_debt() -> DataFrame:
    """Compute it from all settlements so far."""
    return ledger.peak_debt(spark.read.table("settlements"))


@dp.materialized_view(comment="For how long each holder held.")
def hold_percentiles() -> DataFrame:
    """Compute them from all settlements so far."""
    return ledger.hold_percentiles(spark.read.table("settlements"))


@dp.materialized_view(comment="Who held how much of whose debt for how long.")
def blame() -> DataFrame:
    """Compute it from all settlements so far."""
    return ledger.blame(spark.read.table("settlements"))


@dp.materialized_view(comment="For how long each account waited, and for whom.")
def stall_time() -> DataFrame:
    """Compute it from all stalls so far."""
    return ledger.stall_time(spark.read.table("stalls"))


@dp.materialized_view(comment="What became of each publication.")
def fan_out() -> DataFrame:
    """Compute it from all publications so far."""
    return ledger.fan_out(spark.read.table("publications"))


@dp.materialized_view(comment="How evenly tenants were served.")
def fairness() -> DataFrame:
    """Compute it from all settlements so far."""
    return ledger.fairness(spark.read.table("settlements"))


@dp.materialized_view(comment="Which limits would have kept holds under the target.")
def recommended_limits() -> DataFrame:
    """Compute them from all that was settled, and the limits that there were."""
    return ledger.recommended_limits(
        spark.read.table("settlements"),
        spark.read.table("accounts"),
        spark.read.table("limits"),
        spark.read.table("publications"),
        target_ms=TARGET_MS,
    )
