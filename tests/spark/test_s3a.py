"""Spark SQL over an ``s3://`` root, classic and Connect, through S3A: the same answers as DuckDB. ``make s3a`` runs this."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rmq_store.lake.table.store import LakeStore
from spark_jobs.session import ConnectServer
from tests.lake_fixtures import small_store
from tests.s3 import S3Root
from tests.spark.processes import in_a_client, in_a_new_process
from tests.spark.test_sql_views_spark import QUICK, duckdb_answer

VIEWS = ("windows", "lag", "message_rows", "outcomes", "audit")
"""From records of the log, from offsets, from data files, and from all of them."""

LOOK = """
import json, sys
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.store import LakeStore
from spark_jobs.query import register_views

def counts(session, location, views):
    register_views(session, LakeStore.open(Root.parse(location)), views)
    return {view: session.table(view).count() for view in views}
"""
CLASSIC = (
    LOOK
    + """
from spark_jobs.session import open_session
location, views, conf = json.loads(sys.argv[1])
session = open_session("s3a", master="local[2]", s3a=True, conf=conf)
answer = counts(session, location, views)
session.stop()
print(json.dumps(answer))
"""
)
CONNECT = (
    LOOK
    + """
location, *views = arguments
answer = counts(session, location, views)
"""
)


@pytest.fixture
def store(s3_root: S3Root, monkeypatch: pytest.MonkeyPatch) -> LakeStore:
    for name, value in s3_root.env.items():
        monkeypatch.setenv(name, value)
    return small_store(s3_root.root, ["broker-a"]).store


@pytest.mark.s3a
def test_spark_reads_an_s3_root_as_duckdb_does(store: LakeStore, s3_root: S3Root, tmp_path: Path) -> None:
    expected = {view: duckdb_answer(store, view).num_rows for view in VIEWS}
    assert expected["message_rows"] > 0

    classic = in_a_new_process(CLASSIC, json.dumps([s3_root.uri, VIEWS, QUICK]), env=s3_root.env)
    assert classic == expected
    with ConnectServer(master="local[2]", log_file=tmp_path / "server.log") as server:
        assert in_a_client(server.remote, CONNECT, s3_root.uri, *VIEWS, conf=QUICK) == expected
