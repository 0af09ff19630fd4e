"""The command line ``rmq``: options in, calls of ``rmq_store.lake``, answers out.

A command's answer goes to standard output, as text or (``--json``) as one JSON document; notes, warnings and errors go to
standard error. A command imports the packages that it needs when it runs, so that a short query answers within a second of
starting the process.

    exit code   meaning
    0           done; also for a request that was already committed, which says ``status: already_committed``
    1           failed; of ``audit``, ``doctor``, ``diff`` and ``dispatch --check``: there are findings
    2           wrong use: the call, the settings or the SQL
    3           held by another request, or moved by another request
    129, 130, 143   stopped by SIGHUP (a closed terminal), by Ctrl-C or by SIGTERM; claims were released
"""

from __future__ import annotations

from rmq_store.cli.app import command, main

__all__ = ["command", "main"]
