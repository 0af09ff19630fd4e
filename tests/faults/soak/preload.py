"""Imports that every command makes when it runs: here once, for all children that are forked afterwards."""

from __future__ import annotations

import importlib
import pkgutil

import duckdb
import rich.table
import typer._adapters

import rmq_store
from tests.faults.soak import listeners, worker

MODULES = (duckdb, rich.table, typer._adapters, listeners, worker)

for module in pkgutil.walk_packages(rmq_store.__path__, "rmq_store."):
    importlib.import_module(module.name)
