"""The command line ``rmq``: options in, calls of ``rmq_store.lake``, answers out.

What a command answers goes to standard output, as text for people or (``--json``) as one JSON document; what it has to
say on the way, and errors, go to standard error. A command imports what it works with when it runs, so that a short
question is answered within a second of starting the process.

    exit code   meaning
    0           done; also for a request that was already committed, which says ``status: already_committed``
    1           failed; for ``audit``, ``doctor`` and ``diff``: something was found
    2           wrong use: the call, the settings or the SQL
    3           somebody else holds it or has moved it
    130, 143    stopped by Ctrl-C, or by SIGTERM; claims have been given back
"""

from __future__ import annotations

from rmq_store.cli.app import main

__all__ = ["main"]
