"""What a text of SQL may be: one statement that only reads."""

from __future__ import annotations

from typing import Final

import duckdb

from rmq_store.errors import WrongUse
from rmq_store.utils.suggestions import did_you_mean


def reading_statement(connection: duckdb.DuckDBPyConnection, text: str, *, of_user: bool) -> duckdb.Statement:
    """The statement of the text: a SELECT (DESCRIBE, SHOW and SUMMARIZE count as one), or EXPLAIN of one.

    ``of_user`` False: a question of this project itself, whose functions are not looked at: that takes a tenth of an audit.
    ``EXPLAIN ANALYZE`` runs what it explains, also a CREATE VIEW, which a later query of the connection would then read. Raises
    WrongUse for any other text, and DuckDB's error for one that it cannot parse.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise WrongUse(
            "SQL: the query contains an unpaired surrogate (U+D800 to U+DFFF), which is not a character"
        ) from error
    statements = connection.extract_statements(text)
    match [_type(statement) for statement in statements]:
        case [duckdb.StatementType.SELECT]:
            selects = [text]
        case [duckdb.StatementType.EXPLAIN]:
            selects = [rest for rest in _explained(text) if _is_select(connection, rest)]
        case [duckdb.StatementType.MULTI]:
            raise WrongUse(
                "SQL: name the values of PIVOT, as in 'ON topic IN (...)': without them it makes a type first"
            )
        case _:
            selects = []
    if not selects:
        raise WrongUse(
            "give exactly one SELECT (or DESCRIBE, SHOW, SUMMARIZE, or EXPLAIN of a SELECT): only reads are allowed"
        )
    for select in selects if of_user else ():
        _refuse_functions(connection, select)
    return statements[0]


def _type(statement: duckdb.Statement) -> duckdb.StatementType | None:
    """None: DuckDB knows more types than its Python package, which raises for the others, such as UPDATE EXTENSIONS."""
    try:
        return statement.type
    except ValueError:
        return None


def _is_select(connection: duckdb.DuckDBPyConnection, text: str) -> bool:
    try:
        statements = connection.extract_statements(text)
    except duckdb.Error:
        return False
    return [_type(statement) for statement in statements] == [duckdb.StatementType.SELECT]


_TABLE_FUNCTIONS: Final = frozenset(
    {
        *("range", "generate_series", "repeat", "repeat_row", "unnest", "json_each", "json_tree"),
        *("query_table", "summary", "histogram", "histogram_values"),
        *("duckdb_columns", "duckdb_databases", "duckdb_functions", "duckdb_keywords", "duckdb_memory"),
        *("duckdb_optimizers", "duckdb_schemas", "duckdb_settings", "duckdb_tables", "duckdb_temporary_files"),
        *("duckdb_types", "duckdb_views", "pragma_collations", "pragma_database_size", "pragma_show"),
        *("pragma_table_info", "pragma_version", "icu_calendar_names", "pg_timezone_names"),
    }
)
"""The functions of FROM that only make rows, or show relations and DuckDB itself. Others open files, run a text or a function
of Python, read what the memory has at an address, or leave something behind for the next query of the process."""

_CALLED: Final = """
    SELECT json_extract_string(parsed, '$.error_message'), json_extract_string(parsed, '$..function.function_name')
    FROM (SELECT json_serialize_sql($text) AS parsed)
"""
"""The error of a text that DuckDB's parser does not write as JSON, and the functions that are called in FROM, at any depth."""


def _refuse_functions(connection: duckdb.DuckDBPyConnection, text: str) -> None:
    """A function in an expression returns a value; none of DuckDB's runs a text or opens a file."""
    error, called = connection.execute(_CALLED, {"text": text}).fetchall()[0]
    if error is not None:
        raise WrongUse(f"SQL: {error}")
    for name in called:
        if name.lower() not in _TABLE_FUNCTIONS:
            known = sorted(_TABLE_FUNCTIONS)
            raise WrongUse(
                f"SQL: the function {name} is refused in FROM{did_you_mean(name, known)}: only reads are allowed, and no "
                f"files; functions: {', '.join(known)}"
            )


def _explained(text: str) -> list[str]:
    """What follows EXPLAIN: with a list in parentheses, which may belong to the statement, and without it."""
    content = text.encode()
    tokens = _tokens(text)
    words = [word.upper() for word, _ in tokens]
    first = 2 if words[1:2] in ([b"ANALYZE"], [b"ANALYSE"]) else 1
    options_end = words.index(b")") + 1 if words[first] == b"(" and b")" in words else first
    return [content[tokens[number - 1][1] :].decode() for number in {first, options_end}]


def _tokens(text: str) -> list[tuple[bytes, int]]:
    """The words of the text without comments, each with the place in bytes behind it and its blanks."""
    content, tokens = text.encode(), duckdb.tokenize(text)
    ends = [*(begin for begin, _ in tokens[1:]), len(content)]
    return [
        (content[begin:end].split()[0], end)
        for (begin, kind), end in zip(tokens, ends, strict=True)
        if kind is not duckdb.token_type.comment
    ]
