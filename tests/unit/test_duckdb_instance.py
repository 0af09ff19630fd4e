"""The instances of DuckDB that answer queries."""

from __future__ import annotations

import os
import subprocess
import sys

_TIME_ZONES = """
from rmq_store.lake.sql.duckdb_instance import connected
from rmq_store.lake.sql.query_limits import QueryLimits

for limits in (None, QueryLimits.of_environment()):
    with connected(limits) as kept:
        print(*kept.connection.execute("SELECT current_setting('TimeZone')").fetchone())
"""


def test_the_time_zone_of_a_query_is_utc_whatever_that_of_the_process_is() -> None:
    environment = os.environ | {"TZ": "Asia/Tokyo"}
    answer = subprocess.run(
        [sys.executable, "-c", _TIME_ZONES], env=environment, capture_output=True, text=True, check=True
    )
    assert answer.stdout.split() == ["UTC", "UTC"]
