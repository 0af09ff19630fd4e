"""What each page asks: values in, a question out, without a store."""

from __future__ import annotations

from collections.abc import Mapping

from rmq_store.console.listing import Listing
from rmq_store.console.pages import groups, messages, operations

LISTINGS: Mapping[str, Listing] = {**groups.LISTINGS, **messages.LISTINGS, **operations.LISTINGS}
"""By the name in the URL."""
