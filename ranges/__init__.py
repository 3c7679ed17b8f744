"""The range protocol (`subscribe+tcp`): replayable logs to read, and transactional sinks to write.

Spark reads and writes through it. This package imports nothing by itself: Spark's workers import
`clearfunds.ranges.client`, for which the standard library is enough.
"""
