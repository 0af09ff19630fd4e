"""What a text of SQL may be: one statement that only reads."""

from __future__ import annotations

from itertools import pairwise

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
        _refuse_functions(text)
        match statements[0].type:
            case duckdb.StatementType.SELECT:
                return statements[0]
            case duckdb.StatementType.EXPLAIN if any(_is_select(connection, rest) for rest in _explained(text)):
                return statements[0]
            case duckdb.StatementType.MULTI:
                raise WrongUse(
                    "SQL: name the values of PIVOT, as in 'ON topic IN (...)': without them it makes a type first"
                )
    raise WrongUse(
        "give exactly one SELECT (or DESCRIBE, SHOW, SUMMARIZE, or EXPLAIN of a SELECT): only reads are allowed"
    )


def _is_select(connection: duckdb.DuckDBPyConnection, text: str) -> bool:
    try:
        statements = connection.extract_statements(text)
    except duckdb.Error:
        return False
    return [statement.type for statement in statements] == [duckdb.StatementType.SELECT]


def _refuse_functions(text: str) -> None:
    """The functions of external resources leave some behind, and run a query that no interrupt reaches. ``query`` takes SQL, so
    it could call them by a name that the text only makes as it runs."""
    words = [word.strip(b'"').lower() for word, _ in _tokens(text)]
    called = {word for word, following in pairwise(words) if following == b"("}
    if b"query" in called or any(b"external_resource" in word for word in called):
        raise WrongUse("SQL: the functions query and *_external_resource are refused: only reads are allowed")


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
