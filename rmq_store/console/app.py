"""The console as an application of FastAPI: pages as JSON, lists as CSV, and the files of the page.

Every route only reads. The dependency that asks for a user is the application's, so that no route is open; bodies and
properties of messages need the permission to trigger runs of the DAG that they belong to (``Access.may_edit``).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fastapi import Depends, FastAPI, Request, Response

from rmq_store.console.access import Access
from rmq_store.console.answers import HEADERS, answer, csv_file
from rmq_store.console.audits import Audits
from rmq_store.console.listing import Listing
from rmq_store.console.message_routes import add_messages
from rmq_store.console.pages import LISTINGS
from rmq_store.console.pages.attempts import MOST_DIFFERENT, diff_document
from rmq_store.console.pages.groups import MOST_GROUPS, dag_of, lag_history, series, topics_of
from rmq_store.console.reader import StoreReader, TooManyReaders
from rmq_store.errors import RmqError, StoreUnusable, WrongUse, error_answer
from rmq_store.lake.admin.diff import diff
from rmq_store.lake.admin.replay import shards_replayed
from rmq_store.utils.numbers import whole_number
from rmq_store.utils.times import parse_time

_FILES = Path(__file__).parent / "static"
_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'self'"
)


def create_app(reader: StoreReader, access: Access) -> FastAPI:
    """The application. It has no documentation routes, which FastAPI would not protect."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, dependencies=[Depends(access.dependency)])
    _add_errors(app)
    _add_files(app)
    _add_lists(app, reader)
    _add_groups(app, reader, access)
    add_messages(app, reader, access)
    _add_operations(app, reader)
    return app


def _add_errors(app: FastAPI) -> None:
    def refused(status: int) -> Callable[[Request, Exception], Response]:
        return lambda _, error: answer(error_answer(type(error).__name__, str(error), 1), status)

    app.add_exception_handler(WrongUse, refused(400))
    app.add_exception_handler(StoreUnusable, refused(503))
    app.add_exception_handler(RmqError, refused(500))
    busy = error_answer("TooManyReaders", "the console answers too many requests: try again", 3)
    app.add_exception_handler(TooManyReaders, lambda *_: answer(busy, 503))


def _add_files(app: FastAPI) -> None:
    def file(name: str, media_type: str) -> Callable[[], Response]:
        def route() -> Response:
            policy = {"Content-Security-Policy": _PAGE_POLICY} if media_type == "text/html" else {}
            return Response(
                (_FILES / name).read_bytes(), media_type=f"{media_type}; charset=utf-8", headers=HEADERS | policy
            )

        return route

    app.get("/", include_in_schema=False)(file("page.html", "text/html"))
    app.get("/page.js")(file("page.js", "text/javascript"))
    app.get("/page.css")(file("page.css", "text/css"))
    app.get("/shared.js")(file("shared.js", "text/javascript"))
    app.get("/console.js")(file("console.js", "text/javascript"))


def _add_lists(app: FastAPI, reader: StoreReader) -> None:
    @app.get("/api/lists/{name}")
    def rows(name: str, request: Request) -> Response:
        return answer(reader.listing(_listing(name), request.query_params))

    @app.get("/api/csv/{name}")
    def as_csv(name: str, request: Request) -> Response:
        listing = _listing(name)
        query = {key: text for key, text in request.query_params.items() if key not in ("limit", "offset")}
        return csv_file(name, listing.columns, reader.all_rows(listing, query))


def _listing(name: str) -> Listing:
    if name not in LISTINGS:
        raise WrongUse(f"there is no list of this name; lists: {', '.join(LISTINGS)}")
    return LISTINGS[name]


def _add_groups(app: FastAPI, reader: StoreReader, access: Access) -> None:
    @app.get("/api/lag")
    def lag(request: Request) -> Response:
        groups = request.query_params.getlist("group")[:MOST_GROUPS]
        since = request.query_params.get("since") or None
        (rows,) = reader.rows(lag_history(groups, None if since is None else parse_time(since)))
        return answer({"lag": series(rows)})

    @app.get("/api/topics")
    def topics(group: str) -> Response:
        (rows,) = reader.rows(topics_of(group))
        return answer({"group": group, "topics": [row["topic"] for row in rows]})

    @app.get("/api/permissions")
    def permissions(group: str, request: Request) -> Response:
        dag_id = dag_of(group)
        return answer({"group": group, "dag_id": dag_id, "may_edit": access.may_edit(request, dag_id)})


def _add_operations(app: FastAPI, reader: StoreReader) -> None:
    audits = Audits(reader)

    @app.get("/api/audit")
    def audit(again: bool = False) -> Response:
        """The findings of the view ``audit``: of the last time it was read, unless ``again``."""
        return answer(audits.newest(again=again))

    @app.get("/api/diff")
    def compare(group: str, first: str = "", second: str = "") -> Response:
        """The messages that ended differently in two attempts of a replay; default: the last two."""
        pair = _attempts(first, second)
        store = reader.open_store()
        reports = diff(store, shards_replayed(store, group), group, pair, MOST_DIFFERENT)
        return answer({"group": group, "shards": list(map(diff_document, reports))})


def _attempts(first: str, second: str) -> tuple[int, int] | None:
    if not first and not second:
        return None
    pair = whole_number(first), whole_number(second)
    if pair[0] is None or pair[1] is None:
        raise WrongUse("first and second are the numbers of two attempts, from 1")
    return pair[0], pair[1]
