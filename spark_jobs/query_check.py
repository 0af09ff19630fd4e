"""What ``spark_jobs.query`` lets a text do: read the views, and nothing else. Spark SQL can also run commands and programs,
call methods of Java, and read any file that the session may read.

Spark's own parser reads the text, and only what is listed here may be in its plan; nothing is resolved or run before.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

from rmq_store.errors import WrongUse
from rmq_store.utils.suggestions import listed

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PLANS: Final = frozenset(
    {
        *("Project", "Filter", "Aggregate", "Sort", "Distinct", "GlobalLimit", "LocalLimit", "LimitAll", "Offset"),
        *("Join", "LateralJoin", "Union", "Intersect", "Except", "Generate", "Pivot", "Unpivot", "Sample"),
        *(
            "OneRowRelation",
            "LocalRelation",
            "SubqueryAlias",
            "UnresolvedWith",
            "UnresolvedHaving",
            "UnresolvedQualify",
        ),
        *("UnresolvedRelation", "UnresolvedSubqueryColumnAliases", "UnresolvedInlineTable"),
        *("UnresolvedTableValuedFunction", "UnresolvedTVFAliases"),
    }
)
"""The classes of a parsed query. A command, an INSERT, a TRANSFORM with a script and a name from an expression have others."""

_GENERATORS: Final = frozenset(
    {
        *("range", "explode", "explode_outer", "posexplode", "posexplode_outer", "inline", "inline_outer", "stack"),
        *("json_tuple", "variant_explode", "variant_explode_outer"),
    }
)
_NOT_CALLED: Final = frozenset(
    {"reflect", "try_reflect", "java_method", "call_function", "from_protobuf", "to_protobuf"}
)
"""They call methods of Java, or read a file."""

_SUBQUERY: Final = "org.apache.spark.sql.catalyst.expressions.PlanExpression"


def check_query(session: SparkSession, text: str, relations: Collection[str]) -> None:
    """Raises WrongUse for a text that is not one query over ``relations``, and for a session of Spark Connect, whose client
    has no parser."""
    from py4j.protocol import Py4JError
    from pyspark.errors import ParseException

    java = getattr(session, "_jsparkSession", None)
    if java is None:
        raise WrongUse(
            "a client of Spark Connect cannot check a query before it runs: use a classic session, or register_views and "
            "session.sql, which runs whatever the session may run"
        )
    try:
        plan = java.sessionState().sqlParser().parsePlan(text)
    except (ParseException, Py4JError) as error:
        raise WrongUse(f"SQL: {error}") from error
    _check_plan(plan, frozenset(relations), session)


def _check_plan(plan: Any, relations: frozenset[str], session: SparkSession) -> None:
    kind = plan.getClass().getSimpleName().rstrip("$")
    if kind not in _PLANS:
        raise WrongUse(f"SQL: only queries of the views are allowed, not {kind}")
    if kind == "UnresolvedWith":
        names = (entry._1().lower() for entry in _items(plan.cteRelations()))
        relations = relations.union(names)
    if kind == "UnresolvedRelation":
        parts = list(_items(plan.multipartIdentifier()))
        if len(parts) != 1 or parts[0].lower() not in relations:
            raise WrongUse(f"SQL: {'.'.join(parts)} is not one of the views: {listed(sorted(relations))}")
    if kind == "UnresolvedTableValuedFunction":
        _check_name(_items(plan.name()), _GENERATORS)
    for child in (*_items(plan.children()), *_items(plan.innerChildren())):
        _check_plan(child, relations, session)
    for expression in _items(plan.expressions()):
        _check_expression(expression, relations, session)


def _check_expression(expression: Any, relations: frozenset[str], session: SparkSession) -> None:
    from py4j.java_gateway import is_instance_of

    kind = expression.getClass().getSimpleName()
    if "UnresolvedIdentifier" in kind:
        raise WrongUse("SQL: IDENTIFIER(...) is not allowed: write the name itself")
    if kind == "UnresolvedFunction":
        _check_name(_items(expression.nameParts()))
    if kind == "UnresolvedGenerator":
        _check_name([expression.name().unquotedString()], _GENERATORS)
    gateway = session.sparkContext._gateway
    if is_instance_of(gateway, expression, _SUBQUERY):
        _check_plan(expression.plan(), relations, session)
    for child in _items(expression.children()):
        _check_expression(child, relations, session)


def _check_name(parts: Iterator[str] | Collection[str], allowed: Collection[str] | None = None) -> None:
    """Raises WrongUse for a function that may read more than the views, and for one of a catalog. ``allowed``: None for all
    others."""
    name = ".".join(parts).lower().removeprefix("system.").removeprefix("builtin.")
    if "." in name or name in _NOT_CALLED or (allowed is not None and name not in allowed):
        raise WrongUse(f"SQL: the function {name} is not allowed in a query of the views")


def _items(values: Any) -> Iterator[Any]:
    """The items of a Scala Seq."""
    return (values.apply(index) for index in range(values.size()))
