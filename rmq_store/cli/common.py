"""The first steps of most commands: open the store, read the settings, name the request, look up groups and queues."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from rmq_store.cli.options import ChangeOptions, QueueName, before_the_command
from rmq_store.cli.output import Output
from rmq_store.commit.ctl import is_born_here
from rmq_store.commit.positions import PositionKind, Positions
from rmq_store.commit.request import request_id_of
from rmq_store.errors import RmqError, WrongUse, defect, error_answer
from rmq_store.message.message import MessageQueue
from rmq_store.settings.environment import Environment
from rmq_store.utils.host import Host
from rmq_store.utils.redaction import cleaned, secret_values
from rmq_store.utils.suggestions import did_you_mean, listed

if TYPE_CHECKING:
    from rmq_store.lake.table.object_store import Root
    from rmq_store.lake.table.shard import Shard
    from rmq_store.lake.table.store import LakeStore
    from rmq_store.settings.settings import GroupSettings, Settings
    from rmq_store.window.consume_request import Scope

REQUEST: ContextVar[str] = ContextVar("REQUEST", default="")
"""The request id of the running command. Errors name it, so that the user can repeat the request."""

COMMITTED: ContextVar[Callable[[], dict[str, Any]]] = ContextVar("COMMITTED", default=dict)
"""What the running command has committed so far, as JSON. The JSON of an error includes it."""


# --- the store -------------------------------------------------------------------------------------------------------


def root_text(root: str | None) -> str:
    """``--root``, given before or after the command, else $RMQ_ROOT, else the default."""
    option = before_the_command().root if root is None else root
    return Environment.read().root if option is None else option


def root_of(root: str | None) -> Root:
    from rmq_store.lake.table.object_store import Root

    return Root.parse(root_text(root))


def open_store(root: str | None) -> LakeStore:
    """Raises StoreUnusable, which says how to create one, when there is none."""
    from rmq_store.lake.table.store import LakeStore

    return LakeStore.open(root_of(root))


# --- the settings ----------------------------------------------------------------------------------------------------


def settings_path(settings: str | None) -> str:
    """``--settings``, else $RMQ_SETTINGS, else the default."""
    return Environment.read().settings if settings is None else settings


def optional_settings(settings: str | None) -> Settings | None:
    """None when there is no ``--settings`` and the file of $RMQ_SETTINGS, or the default one, does not exist."""
    from rmq_store.settings.settings import read_settings

    path = settings_path(settings)
    return read_settings(path) if settings is not None or os.path.exists(path) else None


def group_and_scope(name: str, settings: str | None, output: Output) -> tuple[GroupSettings, Scope]:
    """The settings of a group or of a replay of it, see ``group_settings``. Invalid settings of other groups become a
    note."""
    from rmq_store.admin.replay import group_settings
    from rmq_store.settings.settings import read_settings

    all_groups = read_settings(settings_path(settings))
    group, scope = group_settings(all_groups, name)
    try:
        all_groups.check()
    except WrongUse as problems:
        output.note(str(problems))
    return group, scope


def known_group(name: str, settings: Settings | None) -> GroupSettings | None:
    """The settings of a group, or of a replay of it; None when the settings do not name it. Raises WrongUse, which lists
    the problems, when they are invalid."""
    from rmq_store.admin.replay import known_settings

    return None if settings is None else known_settings(settings, name)


def check_group(store: LakeStore, name: str, settings: Settings | None) -> None:
    """Raise WrongUse for a group, or a client of a broadcasting group, that neither the store nor the settings name."""
    from rmq_store.lake.admin.groups import need_group

    groups, invalid = ((), {}) if settings is None else (settings.groups, settings.wrong)
    clients = {name for group in groups if group.broadcasting and name.startswith(f"{group.name}@")}
    need_group(store, name, {group.name for group in groups} | clients | set(invalid))


# --- the request -----------------------------------------------------------------------------------------------------


def new_request(command: str, option: str | None, host: Host) -> str:
    """The request id, ``--request`` or a new one (see ``request_id_of``), which errors name from now on."""
    request_id = request_id_of(option, command, host)
    REQUEST.set(request_id)
    return request_id


def part_error(error: Exception, request_id: str) -> dict[str, Any]:
    """The error of a part of the command, such as a group or a shard, as JSON without secrets: the others go on."""
    message, exit_code = (str(error), error.exit_code) if isinstance(error, RmqError) else (defect(error), 1)
    return error_answer(type(error).__name__, cleaned(message, secret_values(os.environ)), exit_code, request_id)


# --- queues and shards ------------------------------------------------------------------------------------------------


def shards_of_request(store: LakeStore, options: ChangeOptions) -> tuple[list[Shard], list[Shard]]:
    """The shards that ``--shard`` chooses, and all in which the request may have been done before: with ``--request`` those of
    the store, since ``--shard`` is no part of a request; an id that is made now is in none. Raises WrongUse for an unknown
    shard."""
    from rmq_store.lake.window.consumption import shards_named

    if options.shard is None or options.request is None:
        shards = store.shards(options.shard)
        return shards, shards
    every = store.shards()
    return shards_named(store, options.shard, every), every


def queues_by_shard(
    shards: Sequence[Shard], topic: str, names: Sequence[QueueName], store: LakeStore | None = None
) -> list[tuple[Shard, tuple[MessageQueue, ...]]]:
    """See ``shards_with_queues``."""
    from rmq_store.lake.window.consumption import shards_with_queues

    queues = [MessageQueue(topic, name.broker_name, name.queue_id) for name in dict.fromkeys(names)]
    return shards_with_queues(shards, topic, queues, store)


def shard_of_broker(store: LakeStore, broker_name: str, chosen: str | None) -> Shard:
    """The shard with a broker's queues, or with an import of it that found none. Raises WrongUse when there is none, or when
    there are several and no ``--shard``."""
    brokers = {shard.name: _brokers_of(shard.positions()) for shard in store.shards(chosen)}
    shards = [shard for shard, names in brokers.items() if broker_name in names]
    if len(shards) == 1:
        return store.shards(shards[0])[0]
    if shards:
        raise WrongUse(f"broker {broker_name} has queues in the shards {', '.join(shards)}: choose one with --shard")
    known = sorted({name for names in brokers.values() for name in names})
    raise WrongUse(
        f"broker {broker_name!r} has not been imported{did_you_mean(broker_name, known)}; known: {listed(known)}"
    )


def _brokers_of(positions: Positions) -> set[str]:
    """The brokers that were imported."""
    of_queues = {queue.broker_name for queue in positions.all_queues() if not is_born_here(queue.broker_name)}
    return of_queues | positions.names(PositionKind.IMPORT)
