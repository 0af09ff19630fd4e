"""``rmq topics``, ``groups``, ``lag``, ``progress``, ``topic-status``, ``sql``: views of the store, and SQL."""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import typer

from rmq_store.cli.command import QueryCommand, add_command
from rmq_store.cli.common import check_group, open_store, optional_settings
from rmq_store.cli.input import read_text_input
from rmq_store.cli.options import DURATION, SIZE, GroupOption, OfGroupOption, SettingsOptions, StoreOptions, TopicOption
from rmq_store.cli.output import MANY_ROWS, Output, answering, cell, harmless, print_table, to_json
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue
from rmq_store.utils.process_limits import bounded_address_space
from rmq_store.utils.times import format_time

if TYPE_CHECKING:
    import pyarrow as pa

    from rmq_store.lake.sql.query_limits import QueryLimits
    from rmq_store.lake.table.store import LakeStore

PANEL = "Inspect"

_BESIDE_A_QUERY: Final = 1 << 30
"""Bytes of address space for threads and libraries: much of it is never used as memory."""


def add_to(app: typer.Typer) -> None:
    add_command(app, topics, ["rmq topics"], panel=PANEL)
    add_command(app, groups, ["rmq groups"], panel=PANEL)
    add_command(app, lag, ["rmq lag --group orders"], panel=PANEL)
    add_command(app, progress, ["rmq progress --group orders"], panel=PANEL)
    add_command(app, topic_status, ["rmq topic-status --topic OrderEvents"], panel=PANEL)
    add_command(
        app,
        sql,
        [
            "rmq sql 'select topic, count(*) from messages group by topic'",
            "rmq sql --file report.sql --format csv",
            "rmq sql - --format json",
        ],
        panel=PANEL,
        cls=QueryCommand,
    )


def topics(*, options: StoreOptions) -> None:
    """List the topics."""
    _show(
        options,
        "topics",
        empty="no topics: import a broker's files with 'rmq import-store', or send messages with 'rmq send'",
    )


def groups(*, options: StoreOptions) -> None:
    """List the consumer groups, including those of imported brokers."""
    _show(options, "groups", empty="no groups yet")


def lag(*, group: OfGroupOption = None, options: SettingsOptions) -> None:
    """Show how far each group is behind, queue by queue."""
    empty = "no group has offsets" if group is None else f"no offsets of {group}"
    _show_group(options, "lag", group, positions_of=group, empty=empty)


def progress(*, group: GroupOption, options: SettingsOptions) -> None:
    """Show a group's offset in each queue, as RocketMQ's consumerProgress does.

    last_time is the time when the last message that the group has read was stored.
    """
    output = Output(options.as_json)
    store = open_store(options.root)
    from rmq_store.lake.read.message_search import quoted, store_times
    from rmq_store.lake.sql.sql import query

    check_group(store, group, optional_settings(options.settings))
    lags = _rows(query(store, f"SELECT * FROM lag WHERE group_name = {quoted(group)} ORDER BY ALL", group=group))
    last: dict[tuple[str, MessageQueue], int] = {}
    for shard in store.shards():
        last_read = {_queue(row): row["next_offset"] - 1 for row in lags if row["shard"] == shard.name}
        last |= {(shard.name, queue): ms for queue, ms in store_times(shard, last_read).items()}
    rows = [
        {name: row[name] for name in ("shard", "topic", "broker_name", "queue_id")}
        | {"broker_offset": row["max_offset"], "consumer_offset": row["next_offset"], "diff": row["lag"]}
        | {"last_time": last.get((row["shard"], _queue(row)))}
        for row in lags
    ]
    total = sum(row["diff"] or 0 for row in rows)
    output.table(
        [row | {"last_time": "N/A" if (ms := row["last_time"]) is None else format_time(ms)} for row in rows],
        list(rows[0]) if rows else [],
        f"group {group} has no offsets",
    )
    output.line(f"diff total: {total:,}")
    output.document({"status": "done", "group": group, "queues": rows, "diff_total": total})


def _queue(row: dict[str, Any]) -> MessageQueue:
    return MessageQueue(row["topic"], row["broker_name"], row["queue_id"])


def topic_status(*, topic: TopicOption, options: StoreOptions) -> None:
    """Show the offset range and the last update of each queue of a topic."""
    output = Output(options.as_json)
    store = open_store(options.root)
    from rmq_store.lake.read.message_search import quoted
    from rmq_store.lake.sql.sql import query
    from rmq_store.lake.window.consumption import shards_with_topic

    shards_with_topic(store.shards(), [topic])  # an unknown topic is an error, not an empty answer
    queues = _rows(query(store, f"SELECT * FROM queues WHERE topic = {quoted(topic)} ORDER BY ALL"))
    columns = ("shard", "broker_name", "queue_id", "min_offset", "max_offset")
    rows = [{name: row[name] for name in columns} | {"last_updated": row["newest_store_timestamp"]} for row in queues]
    output.table(
        [row | {"last_updated": "" if (ms := row["last_updated"]) is None else format_time(ms)} for row in rows],
        (*columns, "last_updated"),
    )
    output.document({"status": "done", "topic": topic, "queues": rows})


def _show(options: StoreOptions, view: str, *, empty: str) -> int:
    """Print a view, sorted; returns the number of its rows. ``empty``: the text for none."""
    return _print_view(options, view, _query(open_store(options.root), f"SELECT * FROM {view} ORDER BY ALL"), empty)


def _show_group(
    options: SettingsOptions, view: str, group: str | None, *, positions_of: str | None = None, empty: str
) -> int:
    """``_show`` of the rows of one group; None: of all. ``positions_of``: the group whose positions the view needs, None: of
    all. Raises WrongUse for an unknown group: a misspelt one would otherwise look healthy."""
    if group is None:
        return _show(options, view, empty=empty)
    store = open_store(options.root)
    from rmq_store.lake.read.message_search import quoted

    text = f"SELECT * FROM {view} WHERE group_name = {quoted(group)} ORDER BY ALL"
    table = _query(store, text, group=positions_of)
    if not table.num_rows:
        check_group(store, group, optional_settings(options.settings))
    return _print_view(options, view, table, empty)


def _print_view(options: StoreOptions, view: str, table: pa.Table, empty: str) -> int:
    output, rows = Output(options.as_json), _rows(table)
    output.table(rows, table.column_names, empty)
    output.document({"status": "done", view: rows})
    return len(rows)


def sql(
    *,
    query: Annotated[
        str | None, typer.Argument(metavar="QUERY", help="One SELECT; - reads it from standard input.")
    ] = None,
    file: Annotated[
        str | None, typer.Option("--file", "-f", metavar="FILE", help="Read the query from a file.")
    ] = None,
    form: Annotated[
        Literal["table", "json", "csv"], typer.Option("--format", help="The format of the rows.")
    ] = "table",
    raw: Annotated[
        bool,
        typer.Option("--raw", help="In CSV: texts as they are, also those that a spreadsheet takes for a formula."),
    ] = False,
    timeout: Annotated[
        int | None,
        typer.Option(
            "--timeout", metavar="DURATION", parser=DURATION, help="End the query after this time; 0s: never."
        ),
    ] = None,
    memory: Annotated[
        int | None,
        typer.Option("--memory", metavar="SIZE", parser=SIZE, help="Of the query, and of its answer, such as 2GiB."),
    ] = None,
    spill: Annotated[
        int | None,
        typer.Option(
            "--spill", metavar="SIZE", parser=SIZE, help="What the query may write to $TMPDIR, such as 10GiB."
        ),
    ] = None,
    options: StoreOptions,
) -> None:
    """Query the store in SQL (DuckDB, read only).

    Views: acked_keys, archived_rows, attempt_outcomes, audit, blocked, consume_queue_entries, consumed_ranges,
    consumer_offsets, dead_letters, delayed, groups, lag, message_rows, messages, offset_history, operator_actions, outcomes,
    queue_owners, queues, redrives, removed_ranges, retries, scheduled, stored_offsets, subscriptions, topics, windows; SHOW
    TABLES lists them, DESCRIBE lag shows the columns of one. Times are UTC ms: epoch_ms(committed_at) makes a timestamp.
    In JSON bytes are base64.

    In CSV a text that a spreadsheet would run as a formula (one that begins with = + - @, a tab or a line end, and is no
    number) gets a ' before it. JSON has texts as they are.

    A query may take 10 minutes, half of the machine's memory up to 4 GiB, and 16 GiB of temporary files. The variables
    RMQ_SQL_TIMEOUT, RMQ_SQL_MEMORY and RMQ_SQL_SPILL change these limits.
    """
    text, store = _query_text(query, file), open_store(options.root)
    from rmq_store.lake.sql.query_limits import QueryLimits

    limits = QueryLimits.of_environment(timeout_ms=timeout, memory_bytes=memory, spill_bytes=spill)
    with bounded_address_space(
        2 * limits.memory_bytes + _BESIDE_A_QUERY
    ):  # DuckDB does not count what a function makes
        table = _query(store, text, limits=limits)
    with answering():
        if Output(options.as_json).as_json or form == "json":
            sys.stdout.writelines(_json_array(table))
        elif form == "csv":
            _write_csv(table, raw)
        else:
            print_table(_rows(table.slice(0, MANY_ROWS)), table.column_names, table.num_rows)
        sys.stdout.flush()


class _Lines:
    """Standard output for csv.writer, whose own line end must be ``\\r\\n``: it quotes texts with a part of that."""

    def write(self, row: str) -> int:
        return sys.stdout.write(row.removesuffix("\r\n") + "\n")


def _write_csv(table: pa.Table, raw: bool) -> None:
    import pyarrow.types as types

    def is_text(kind: pa.DataType) -> bool:
        return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_binary(kind))

    writer, text = csv.writer(_Lines()), cell if raw else harmless
    of_columns = {field.name: text if is_text(field.type) else cell for field in table.schema}
    writer.writerow(map(text, of_columns))
    for row in _each_row(table):
        writer.writerow(of_column(row[name]) for name, of_column in of_columns.items())


def _query_text(query: str | None, file: str | None) -> str:
    if (query is None) == (file is None):
        raise WrongUse("give exactly one query: as text, - for standard input, or --file FILE")
    if file is not None:
        return read_text_input("--file", file)
    return read_text_input("the query", "-") if query == "-" else str(query)


def _query(store: LakeStore, text: str, *, group: str | None = None, limits: QueryLimits | None = None) -> pa.Table:
    from rmq_store.lake.sql.sql import query

    table = query(store, text, group=group, limits=limits)
    return table.rename_columns(_unique(table.column_names))


def _unique(names: Sequence[str]) -> list[str]:
    """A query may use one column name twice; a row as a dict, or as a JSON object, may not."""
    counts: dict[str, int] = {}
    unique = []
    for name in names:
        counts[name] = counts.get(name, 0) + 1
        unique.append(name if counts[name] == 1 else f"{name}_{counts[name]}")
    return unique


def _rows(table: pa.Table) -> list[dict[str, Any]]:
    return list(_each_row(table))


def _each_row(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Rows by column name; maps as dicts."""
    for batch in table.to_batches(max_chunksize=10_000):
        columns = [_values(batch.column(i)) for i in range(batch.num_columns)]
        for values in zip(*columns, strict=True):
            yield dict(zip(table.column_names, values, strict=True))


_INTERVAL = "month_day_nano_interval"


def _values(column: pa.Array) -> Sequence[Any]:
    from rmq_store.lake.sql.sql import as_texts

    if _INTERVAL not in str(column.type):
        try:
            values: Sequence[Any] = column.to_pylist(maps_as_pydicts="lossy")
            return values
        except (OverflowError, TypeError, ValueError):
            pass  # a date beyond Python's, or a map whose keys are structs
    return as_texts(column)


def _json_array(table: pa.Table) -> Iterator[str]:
    """The rows as one JSON array, in parts."""
    yield "["
    for number, row in enumerate(_each_row(table)):
        yield (",\n" if number else "\n") + to_json(row)
    yield "\n]\n"
