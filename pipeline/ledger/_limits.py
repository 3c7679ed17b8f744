"""The limits (high-water marks) that would have kept hold times under a target: the arithmetic.

Little's law: the messages of an account in a holder are the rate at which the holder clears them,
times the hold of each. An account never owes more than its limit at all its holders together. So at
any one of them, however slow, no message is held for longer than

    limit / (the rate at which that holder clears this account's messages)

if the holder works first in, first out. Solved for the limit: `limit = target * rate` keeps holds
under the target at a holder of that rate, and the least of these over an account's holders keeps
them under it everywhere.

The rate. Only loans held for longer than the target show how fast a holder is when it cannot keep
up: its other hours do not count, nor do loans that were discarded. Stretches of time in which at
least one such loan was open are added up. The target is subtracted from the beginning of each
stretch, as nothing could have been held too long by then (but at most half of the stretch). The
rate is the amount of these loans that was cleared, over that time.

The tail. A holder's rate varies. The debt swings evenly between the lower mark (the share `low` of
the limit) and the limit, and so do holds: with a steady rate the mean hold is (1 + low) / 2 of the
longest. If the 99th percentile is farther from the mean than that, the rate is assumed to fall that
much below its mean, and the limit is lowered by as much. The result is multiplied by `margin`.

The floor. A limit that is too low costs throughput: when the reader goes on, at the lower mark, the
holder must have enough to work on until more comes. That is the amount it clears in two times: the
time of a message with no other before it (the shortest hold on record, as BBR takes the shortest
round trip: Cardwell et al., 2016; for a consumer that acknowledges, its round trip), and the time
until the relay reads again (`wake_ms`). So

    floor = fan-out of one message + rate * (shortest hold + wake) / low

and the limit is not below that, nor above the present one. If the floor is above the limit that the
target asks for, no limit can reach the target: the time is not spent waiting behind other messages.

Left out are: accounts whose holds are under the target; holders that cleared fewer than 100 of an
account's messages, too few for a 99th percentile; and, at each holder, accounts that have less than
a tenth of an equal share of its debt, as they wait behind the others' messages.

Limits of the method. A limit does not affect data in the kernel's buffers: if a peer reads in
bursts, its holder keeps what comes in between, whatever the limit. A record that begins in the
middle of an overload has no short holds, and its floor may be the limit itself. A record shows one
load: a holder that was not slow in it may be slow in another. Many accounts at one slow holder
share its rate. Each account's rate is its own part, and if their floors together are more than the
holder clears in time, only a limit on an account above them all can help.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyspark.sql import Window
from pyspark.sql import functions as fn

from .._errors import OptionError
from ._columns import CLEARED, ROUTER, refuse_streams, weighted
from ._hold import hold_percentiles

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

MIN_ITEMS: Final = 100
"""Fewer messages have no 99th percentile."""

INNOCENT: Final = 0.1
"""An account with less than this part of an equal share of a holder's debt does not slow it."""

DEFAULT_LOW: Final = 0.5
"""The lower mark as a share of the limit, if none was set; as in `accounts.Limit`."""


def recommended_limits(
    settlements: DataFrame,
    accounts: DataFrame | None = None,
    limits: DataFrame | None = None,
    publications: DataFrame | None = None,
    *,
    target_ms: float = 250.0,
    margin: float = 0.8,
    wake_ms: float = 10.0,
) -> DataFrame:
    """Return the limits that would have kept the 99th percentile of hold times under a target.

    Batch only. The module's docstring and docs/ledger.md explain the method and its limits.

    Args:
        settlements: Loans that ended, from a time of overload.
        accounts: Snapshots of statements, for the present limits, which are never raised; accounts
            whose debt is at rest (a queue's disk) are left out.
        limits: Changes of limits, for lower marks; by default they are half of the limits.
        publications: For the fan-out of a message; by default one copy for each of its account's
            holders.
        target_ms: How long a message may be held.
        margin: The share of the computed limit to use.
        wake_ms: How long a reader that goes on needs to bring more.

    Returns:
        account, holder (the one that decided, or else the one with the longest holds), items_per_s,
        bytes_per_s (the holder's rate for this account during holds over the target; null without
        such holds), p99_ms (at that holder), limit_items, limit_bytes (the present ones, or null if
        unknown, with the advice `keep`), advice: `keep`, `lower`, or `floor` if the limit is as low
        as it can be without costing throughput, and misses the target.

    Raises:
        OptionError: The target or margin is not positive, or the margin above 1.
        PipelineError: A table is a stream.
    """
    if target_ms <= 0 or not 0 < margin <= 1 or wake_ms < 0:
        msg = (
            f"target_ms={target_ms} must be above 0, margin={margin} above 0 and at most 1, and "
            f"wake_ms={wake_ms} not below 0"
        )
        raise OptionError(msg)
    instead = "give it what read() returns"
    refuse_streams("a limit", instead, settlements, accounts, limits, publications)
    cleared = settlements.where(
        fn.col("outcome").isin(*CLEARED) & (fn.col("kind") != ROUTER)
    ).withColumn("hold_ns", fn.greatest(fn.col("settled_ns") - fn.col("opened_ns"), fn.lit(0)))
    known = _one_message(_present(_at_holders(cleared, target_ms), accounts, limits), publications)
    at_holders = known.withColumns(_arithmetic(target_ms, margin, wake_ms))
    first = Window.partitionBy("account").orderBy(
        fn.col("too_long").desc(),
        fn.coalesce("wanted_bytes", fn.lit(0.0)),
        fn.col("p99_ms").desc(),
        "holder",
    )
    account = Window.partitionBy("account")
    decided = at_holders.withColumns(
        {
            "place": fn.row_number().over(first),
            "want_items": fn.min("wanted_items").over(account),
            "want_bytes": fn.min("wanted_bytes").over(account),
            "least_items": fn.max("floor_items").over(account),
            "least_bytes": fn.max("floor_bytes").over(account),
        }
    ).where("place = 1")
    new = {
        unit: fn.ceil(fn.greatest(f"want_{unit}", f"least_{unit}")) for unit in ("items", "bytes")
    }
    lower = {
        unit: fn.col(f"now_{unit}").isNull() | (new[unit] < fn.col(f"now_{unit}")) for unit in new
    }
    at_floor = (fn.col("least_items") > fn.col("want_items")) | (
        fn.col("least_bytes") > fn.col("want_bytes")
    )
    advice = (
        fn.when(~fn.col("too_long"), "keep")
        .when(at_floor, "floor")
        .when(lower["items"] | lower["bytes"], "lower")
        .otherwise("keep")
    )

    def limit(unit: str) -> Column:
        now = fn.col(f"now_{unit}")
        return fn.when(fn.col("too_long"), fn.least(new[unit], now)).otherwise(now).cast("long")

    return decided.select(
        "account",
        "holder",
        "items_per_s",
        "bytes_per_s",
        "p99_ms",
        limit("items").alias("limit_items"),
        limit("bytes").alias("limit_bytes"),
        advice.alias("advice"),
    )


def _present(
    at_holders: DataFrame, accounts: DataFrame | None, limits: DataFrame | None
) -> DataFrame:
    """Add the present limits (`now_`), and the lower marks as shares of them (`low_`)."""
    units = ("items", "bytes")
    if accounts is None:
        known = at_holders.withColumns({f"now_{unit}": fn.lit(None).cast("long") for unit in units})
    else:
        last = accounts.groupBy("account").agg(
            *(fn.max_by(f"limit_{unit}", "at_ns").alias(f"now_{unit}") for unit in units),
            # An account that was once at rest counts as that, whatever its last snapshot says.
            fn.max("at_rest").alias("at_rest"),
        )
        # An account that came and went between two snapshots has no statement.
        known = at_holders.join(last, "account", "left")
        # The column stays: to drop it by name, Spark Connect asks for the other columns, which
        # Declarative Pipelines do not allow where tables are declared.
        known = known.where(fn.col("at_rest").isNull())
    if limits is None:
        return known.withColumns({f"low_{unit}": fn.lit(DEFAULT_LOW) for unit in units})
    marks = limits.groupBy("account").agg(
        *(
            fn.max_by(fn.try_divide(f"low_{unit}", f"limit_{unit}"), "at_ns").alias(f"low_{unit}")
            for unit in units
        )
    )
    return known.join(marks, "account", "left").withColumns(
        # A mark of 0 would divide by zero: it is taken for a very low one.
        {
            f"low_{unit}": fn.greatest(
                fn.coalesce(f"low_{unit}", fn.lit(DEFAULT_LOW)), fn.lit(0.05)
            )
            for unit in units
        }
    )


def _one_message(at_holders: DataFrame, publications: DataFrame | None) -> DataFrame:
    """Add the largest fan-out of an account's messages: `fan_items`, `fan_bytes`."""
    account = Window.partitionBy("account")
    holders = fn.count("holder").over(account)
    guess = at_holders.withColumns(
        {
            "fan_items": holders.cast("double"),
            "fan_bytes": holders * fn.max("size").over(account),
        }
    )
    if publications is None:
        return guess
    told = (
        publications.where("items > 0")
        .groupBy("account")
        .agg(
            fn.max(fn.col("copies") / fn.col("items")).alias("told_items"),
            fn.max(fn.col("copied_bytes") / fn.col("items")).alias("told_bytes"),
        )
    )
    return guess.join(told, "account", "left").withColumns(
        {
            "fan_items": fn.coalesce("told_items", "fan_items"),
            "fan_bytes": fn.coalesce("told_bytes", "fan_bytes"),
        }
    )


def _at_holders(cleared: DataFrame, target_ms: float) -> DataFrame:
    """Return hold times, amounts cleared and rates, by account and holder."""
    keys = ["account", "holder"]
    holds = hold_percentiles(cleared, by=keys, at=(0.99,)).select(*keys, "items", "p99_ms")
    shortest = cleared.groupBy(*keys).agg(
        (fn.min("hold_ns") / 1e9).alias("shortest_s"),
        fn.max(fn.try_divide("bytes", "items")).alias("size"),
    )
    late = _late(cleared.where(fn.col("hold_ns") > fn.lit(target_ms * 1e6)), target_ms)
    known = holds.join(shortest, keys).join(late, keys, "left")
    same_holder = Window.partitionBy("holder")
    share = fn.col("late_item_s") * fn.count("late_item_s").over(same_holder)
    guilty = share >= fn.sum("late_item_s").over(same_holder) * INNOCENT
    too_long = (fn.col("p99_ms") > target_ms) & (fn.col("items") >= MIN_ITEMS) & guilty
    return known.withColumn("too_long", fn.coalesce(too_long, fn.lit(False)))


def _late(loans: DataFrame, target_ms: float) -> DataFrame:
    """Return the rate at which loans held too long were cleared, by account and holder."""
    keys = ["account", "holder"]
    in_order = Window.partitionBy(*keys).orderBy("opened_ns", "settled_ns")
    before = in_order.rowsBetween(Window.unboundedPreceding, -1)
    so_far = in_order.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    begins = fn.coalesce(fn.col("opened_ns") > fn.max("settled_ns").over(before), fn.lit(True))
    stretches = (
        loans.withColumn("begins", begins.cast("int"))
        .withColumn("stretch", fn.sum("begins").over(so_far))
        .groupBy(*keys, "stretch")
        .agg(
            ((fn.max("settled_ns") - fn.min("opened_ns")) / 1e9).alias("seconds"),
            fn.sum(weighted("items")).alias("items"),
            fn.sum(weighted("bytes")).alias("bytes"),
            fn.sum(weighted("items") * fn.col("hold_ns") / 1e9).alias("item_s"),
        )
    )
    busy = fn.greatest(fn.col("seconds") - target_ms / 1e3, fn.col("seconds") / 2)
    return stretches.groupBy(*keys).agg(
        fn.sum("item_s").alias("late_item_s"),
        (fn.sum("items") / fn.sum(busy)).alias("late_items_per_s"),
        (fn.sum("bytes") / fn.sum(busy)).alias("late_bytes_per_s"),
        (fn.sum("item_s") / fn.sum("items") * 1e3).alias("late_mean_ms"),
    )


def _arithmetic(target_ms: float, margin: float, wake_ms: float) -> dict[str, Column]:
    """Return the columns for the limit that each holder needs; null if it needs none."""
    found: dict[str, Column] = {}
    for unit in ("items", "bytes"):
        rate = fn.when(fn.col("too_long"), fn.col(f"late_{unit}_per_s"))
        low = fn.col(f"low_{unit}")
        swing = fn.try_divide("late_mean_ms", fn.col("p99_ms") * (1 + low) / 2)
        working = (fn.col("shortest_s") + wake_ms / 1e3) / low
        found[f"{unit}_per_s"] = rate
        found[f"wanted_{unit}"] = rate * fn.least(swing, fn.lit(1.0)) * (target_ms / 1e3 * margin)
        found[f"floor_{unit}"] = fn.col(f"fan_{unit}") + rate * working
    return found
