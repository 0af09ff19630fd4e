"""Answers of the routes: JSON and CSV."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import Response

from rmq_store.cli.output import harmless, to_json

HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "same-origin"}


def answer(document: Mapping[str, Any], status: int = 200) -> Response:
    """A JSON answer."""
    return Response(to_json(document), status, media_type="application/json", headers=HEADERS)


def csv_file(name: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Response:
    """Rows as a CSV file whose texts no spreadsheet runs as a formula."""
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(columns)
    writer.writerows([harmless(row[column]) for column in columns] for row in rows)
    disposition = {"Content-Disposition": f'attachment; filename="rmq-{name}.csv"'}
    return Response(text.getvalue(), media_type="text/csv; charset=utf-8", headers=HEADERS | disposition)
