"""Small tables: Spark takes longer to write and compile its code for a query than to run it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

#: The queries are the same, and are interpreted; tests marked `long` run them compiled.
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}


@pytest.fixture(autouse=True)
def interpreted(request: pytest.FixtureRequest) -> Iterator[None]:
    if "spark" not in request.fixturenames or request.node.get_closest_marker("long") is not None:
        yield
        return
    spark: SparkSession = request.getfixturevalue("spark")
    for name, value in INTERPRETED.items():
        spark.conf.set(name, value)
    yield
    for name in INTERPRETED:
        spark.conf.unset(name)
