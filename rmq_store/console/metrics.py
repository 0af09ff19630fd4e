"""Metrics for Prometheus under the names of rocketmq-exporter, so that its dashboards and alarms go on.

``cluster`` is the shard. Labels of clients that are connected to a broker (``countOfOnlineConsumers``, ``msgModel``) are
left out, as a store has none.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request, Response

from rmq_store.console.answers import HEADERS
from rmq_store.console.listing import Question
from rmq_store.console.reader import StoreReader
from rmq_store.consumer.replay_name import is_of_a_replay

_TEXT = "text/plain; version=0.0.4; charset=utf-8"

_LAG = Question("""
    SELECT
        group_name AS "group", topic, CAST(sum(lag) AS BIGINT) AS lag
    FROM lag WHERE group_name <> 'CID_RMQ_SYS_SCHEDULE'
    GROUP BY group_name, topic ORDER BY group_name, topic""")
_OFFSETS = Question("""
    SELECT
        shard AS cluster, broker_name AS broker, topic, group_name AS "group", CAST(sum(next_offset) AS BIGINT) AS next_offset
    FROM consumer_offsets WHERE group_name <> 'CID_RMQ_SYS_SCHEDULE'
    GROUP BY shard, broker_name, topic, group_name ORDER BY shard, broker_name, topic, group_name""")
_QUEUES = Question("""
    SELECT
        shard AS cluster, broker_name AS broker, topic, CAST(sum(max_offset) AS BIGINT) AS max_offset,
        CAST(sum(max_offset - min_offset) AS BIGINT) AS messages
    FROM queues GROUP BY shard, broker_name, topic ORDER BY shard, broker_name, topic""")
_RETRY, _DEAD = "%RETRY%", "%DLQ%"

Sample = tuple[Mapping[str, str], int]


@dataclass(frozen=True, slots=True)
class Metric:
    """A gauge and its samples: labels and a value."""

    name: str
    help: str
    samples: Sequence[Sample]


def create_metrics_app(reader: StoreReader, token: Callable[[], str | None]) -> FastAPI:
    """An application with the only route ``/metrics``. ``token``: what a request must bring as its bearer token; None: there
    are no metrics (404)."""

    def check(request: Request) -> None:
        expected = token()
        if not expected:
            raise HTTPException(404)
        given = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), expected.encode()):
            raise HTTPException(401, headers={"WWW-Authenticate": "Bearer"})

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(check)])

    @app.get("/metrics")
    def metrics() -> Response:
        lag, offsets, queues = reader.rows(_LAG, _OFFSETS, _QUEUES)
        return Response(exposition(metrics_of(lag, offsets, queues)), media_type=_TEXT, headers=HEADERS)

    return app


Rows = Sequence[Mapping[str, Any]]


def metrics_of(lag: Rows, offsets: Rows, queues: Rows) -> Iterator[Metric]:
    """The metrics of a store, from the rows of its groups' topics, of their offsets, and of its topics."""
    # A replay does not go on behind the end that its request says.
    of_topics = [row for row in lag if not row["topic"].startswith(_RETRY) and not is_of_a_replay(row["group"])]
    of_retries = [row for row in lag if row["topic"].startswith(_RETRY)]
    topics = [row for row in queues if not row["topic"].startswith((_RETRY, _DEAD))]
    retry_topics = [row for row in queues if row["topic"].startswith(_RETRY)]
    dead = [{**row, "group": row["topic"].removeprefix(_DEAD)} for row in queues if row["topic"].startswith(_DEAD)]
    yield Metric("rocketmq_group_diff", "Messages that a group has not consumed", _of(of_topics, "lag", "group topic"))
    yield Metric("rocketmq_group_retrydiff", "Retries to be consumed", _of(of_retries, "lag", "group topic"))
    yield Metric("rocketmq_group_dlqdiff", "Dead letters of a group", _summed(dead, "messages", "group topic"))
    labels = "cluster broker topic group"
    yield Metric("rocketmq_consumer_offset", "Sum of a group's offsets", _of(offsets, "next_offset", labels))
    labels = "cluster broker topic"
    yield Metric("rocketmq_producer_offset", "Sum of a topic's end offsets", _of(topics, "max_offset", labels))
    yield Metric("rocketmq_topic_retry_offset", "The same of retry topics", _of(retry_topics, "max_offset", labels))
    labels = "cluster broker group"
    yield Metric("rocketmq_topic_dlq_offset", "The same of dead-letter topics", _of(dead, "max_offset", labels))


def _of(rows: Rows, value: str, labels: str) -> list[Sample]:
    return [({name: row[name] for name in labels.split()}, row[value]) for row in rows]


def _summed(rows: Rows, value: str, labels: str) -> list[Sample]:
    """One sample per labels, over all brokers."""
    sums: dict[tuple[str, ...], int] = {}
    for row in rows:
        key = tuple(row[name] for name in labels.split())
        sums[key] = sums.get(key, 0) + row[value]
    return [(dict(zip(labels.split(), key, strict=True)), count) for key, count in sorted(sums.items())]


def exposition(metrics: Iterable[Metric]) -> str:
    """Prometheus' text format, version 0.0.4."""
    return "".join(line for metric in metrics for line in _lines(metric))


def _lines(metric: Metric) -> Iterator[str]:
    yield f"# HELP {metric.name} {metric.help}\n# TYPE {metric.name} gauge\n"
    for labels, value in metric.samples:
        named = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items())
        yield f"{metric.name}{{{named}}} {value}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
