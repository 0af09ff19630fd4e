"""The first steps of most commands: open the store, read the settings, name the request, look up groups and queues."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from rmq_store.cli.options import QueueName, before_the_command
from rmq_store.cli.output import Output
from rmq_store.cli.startup import start_pyarrow
from rmq_store.commit.ctl import is_born_here
from rmq_store.commit.request import request_id_of
from rmq_store.errors import WrongUse
from rmq_store.message.message import MessageQueue
from rmq_store.settings.environment import Environment
from rmq_store.utils.host import Host
from rmq_store.utils.known_names import did_you_mean, listed

if TYPE_CHECKING:
    from rmq_store.lake.table.object_store import Root
    from rmq_store.lake.table.shard import Shard
    from rmq_store.lake.table.store import LakeStore
    from rmq_store.settings.settings import GroupSettings, Settings
    from rmq_store.window.plan import Scope

REQUEST: ContextVar[str] = ContextVar("REQUEST", default="")
"""The request id of the running command. Errors name it, so that the user can repeat the request."""

DONE: ContextVar[Callable[[], dict[str, Any]]] = ContextVar("DONE", default=dict)
"""What the running command has committed so far, as JSON. The JSON of an error includes it."""


# --- the store -------------------------------------------------------------------------------------------------------
# A command opens the store before it imports anything else of the lake: see startup.py.


def root_text(root: str | None) -> str:
    """``--root``, given before or after the command, else $RMQ_ROOT, else the default."""
    given = before_the_command().root if root is None else root
    return Environment.read().root if given is None else given


def root_of(root: str | None) -> Root:
    start_pyarrow()
    from rmq_store.lake.table.object_store import Root

    return Root.parse(root_text(root))


def open_store(root: str | None) -> LakeStore:
    """Raises StoreUnusable, which says how to create one, when there is none."""
    start_pyarrow()
    from rmq_store.lake.table.store import LakeStore

    return LakeStore.open(root_of(root))


def settings_path(settings: str | None) -> str:
    return Environment.read().settings if settings is None else settings


def settings_of(settings: str | None) -> Settings:
    from rmq_store.settings.settings import read_settings

    return read_settings(settings_path(settings))


def settings_if_there(settings: str | None) -> Settings | None:
    """None when there is no ``--settings`` and the file of $RMQ_SETTINGS, or the default one, does not exist."""
    there = settings is not None or os.path.exists(settings_path(settings))
    return settings_of(settings) if there else None


# --- the request -----------------------------------------------------------------------------------------------------


def new_request(command: str, given: str | None, host: Host) -> str:
    """The request id (see ``request_id_of``), which errors name from now on."""
    request_id = request_id_of(given, command, host)
    REQUEST.set(request_id)
    return request_id


# --- where things are ------------------------------------------------------------------------------------------------


def queues_by_shard(
    shards: Sequence[Shard], topic: str, names: Sequence[QueueName]
) -> list[tuple[Shard, tuple[MessageQueue, ...]]]:
    """See ``shards_with_queues``."""
    from rmq_store.lake.window.consumption import shards_with_queues

    queues = [MessageQueue(topic, name.broker_name, name.queue_id) for name in dict.fromkeys(names)]
    return shards_with_queues(shards, topic, queues)


def shard_of_broker(store: LakeStore, broker_name: str, chosen: str | None) -> Shard:
    """The shard with a broker's queues. Raises WrongUse when there is none, or when there are several and no ``--shard``."""
    held = {
        shard.name: {q.broker_name for q in shard.positions().all_queues() if not is_born_here(q.broker_name)}
        for shard in store.shards(chosen)
    }
    found = [name for name, brokers in held.items() if broker_name in brokers]
    if len(found) == 1:
        return store.shards(found[0])[0]
    if found:
        raise WrongUse(f"broker {broker_name} has queues in the shards {', '.join(found)}: choose one with --shard")
    known = sorted({broker for brokers in held.values() for broker in brokers})
    raise WrongUse(
        f"broker {broker_name!r} has not been imported{did_you_mean(broker_name, known)}; known: {listed(known)}"
    )


def asked_group(name: str, settings: str | None, output: Output) -> tuple[GroupSettings, Scope]:
    """The settings of a group or of a replay of it; see ``group_settings``. Invalid settings of other groups become a note."""
    from rmq_store.admin.replay import group_settings

    found = settings_of(settings)
    asked = group_settings(found, name)
    try:
        found.check()
    except WrongUse as wrong:
        output.note(str(wrong))
    return asked


def known_group(name: str, settings: str | None) -> GroupSettings | None:
    """The settings of a group, or of a replay of it; None when they do not name it or there are no settings. Raises
    WrongUse, which lists the problems, when they are invalid."""
    from rmq_store.admin.replay import known_settings

    found = settings_if_there(settings)
    return None if found is None else known_settings(found, name)


def check_group(store: LakeStore, name: str, settings: str | None) -> None:
    """Raises WrongUse for a group, or a client of a broadcasting group, that neither the store nor the settings name."""
    from rmq_store.lake.admin.groups import need_group

    found = settings_if_there(settings)
    groups, wrong = ((), {}) if found is None else (found.groups, found.wrong)
    clients = {name for group in groups if group.broadcasting and name.startswith(f"{group.name}@")}
    need_group(store, name, {group.name for group in groups} | clients | set(wrong))
