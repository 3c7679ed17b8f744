"""What the tests of the report's command share: a session of Spark that it does not stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Kept:
    """A session that is others' to stop."""

    def __init__(self, session: SparkSession) -> None:
        self._session = session

    def stop(self) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)


@pytest.fixture
def ours(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the command work with the tests' session."""

    def session(_: str, **__: str) -> Kept:
        return Kept(spark)

    monkeypatch.setattr("clearfunds.pipeline.report._run.session", session)
