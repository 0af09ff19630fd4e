"""What a text of SQL may be: one statement that only reads."""

from __future__ import annotations

import duckdb

from rmq_store.errors import WrongUse


def reading_statement(connection: duckdb.DuckDBPyConnection, text: str) -> duckdb.Statement:
    """The statement of the text: a SELECT (DESCRIBE, SHOW and SUMMARIZE count as one), or EXPLAIN of one.

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
    if len(statements) == 1:
        match statements[0].type:
            case duckdb.StatementType.SELECT:
                return statements[0]
            case duckdb.StatementType.EXPLAIN if any(_is_select(connection, rest) for rest in _explained(text)):
                return statements[0]
    raise WrongUse(
        "give exactly one SELECT (or DESCRIBE, SHOW, SUMMARIZE, or EXPLAIN of a SELECT): only reads are allowed"
    )


def _is_select(connection: duckdb.DuckDBPyConnection, text: str) -> bool:
    try:
        statements = connection.extract_statements(text)
    except duckdb.Error:
        return False
    return [statement.type for statement in statements] == [duckdb.StatementType.SELECT]


def _explained(text: str) -> list[str]:
    """What follows EXPLAIN: with a list in parentheses, which may belong to the statement, and without it."""
    content = text.encode()
    begins = [begin for begin, kind in duckdb.tokenize(text) if kind is not duckdb.token_type.comment]
    ends = [*begins[1:], len(content)]
    words = [content[begin:end].split()[0].upper() for begin, end in zip(begins, ends, strict=True)]
    first = 2 if words[1:2] in ([b"ANALYZE"], [b"ANALYSE"]) else 1
    options_end = words.index(b")") + 1 if words[first] == b"(" and b")" in words else first
    return [content[ends[number - 1] :].decode() for number in {first, options_end}]
