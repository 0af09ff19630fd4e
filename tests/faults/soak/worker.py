"""A child process that runs one command of ``rmq``, and may kill or stop itself at a step of the commit protocol.

Children are forked from a server that has imported the libraries once, so that a round has thousands of them.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rmq_store.cli.app import command
from rmq_store.commit import claim as claim_rules
from rmq_store.lake.commit import claim as lake_claim
from rmq_store.lake.commit import commit as commit_steps
from rmq_store.lake.table.object_store import Put, Root
from rmq_store.lake.window import consume_all

PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["tests.faults.soak.preload"])

LEASE_S, RENEW_EVERY_S = 3, 1
"""Shorter than those of the product (two minutes), so that a process can sleep past its lease."""


OUTPUT = ("out", "err")
"""The files of a run's output, in the order of their file descriptors 1 and 2."""


@dataclass(frozen=True, slots=True)
class At:
    """Where a process sends itself a signal."""

    signal: int
    """SIGKILL or SIGSTOP."""
    step: str
    """One of the steps of ``commit.STEPS``, or ``entry``: right after an entry was put into any log."""
    times: int
    """At the n-th time that it comes there, from 1."""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a command."""

    arguments: tuple[str, ...]
    folder: Path
    """Where its output goes, to files that exist."""
    environment: Mapping[str, str]
    at: At | None = None


def run(run: Run) -> None:
    """The target of a child process. Its exit code is that of the command."""
    for number, name in enumerate(OUTPUT, 1):
        os.dup2(os.open(run.folder / name, os.O_WRONLY | os.O_APPEND), number)
    os.environ.update(run.environment)
    claim_rules.LEASE_S = LEASE_S
    for module in (lake_claim, consume_all):
        module.RENEW_EVERY_S = RENEW_EVERY_S  # type: ignore[attr-defined]
    consume_all._LOOK_EVERY_S = RENEW_EVERY_S / 4
    if run.at is not None:
        _signal_at(run.at)
    sys.argv = ["rmq", *run.arguments]
    command()


def _signal_at(at: At) -> None:
    reached = 0

    def count() -> None:
        nonlocal reached
        reached += 1
        if reached == at.times:
            os.kill(os.getpid(), at.signal)

    def on_step(step: str) -> None:
        if step == at.step:
            count()

    commit_steps.on_step = on_step
    if at.step == "entry":
        put_once = Root.put_once

        def put_and_count(root: Root, name: str, content: bytes) -> Put:
            put = put_once(root, name, content)
            count()
            return put

        Root.put_once = put_and_count  # type: ignore[method-assign, assignment]
