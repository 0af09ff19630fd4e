"""The checks of ``rmq doctor`` for the settings: the file, its subscriptions and its listeners."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from rmq_store.commit.positions import PositionKind
from rmq_store.errors import ListenerError, RmqError, WrongUse
from rmq_store.lake.admin.doctor import Check, CheckSkipped
from rmq_store.lake.listener.task_listener import opened_listener
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.lake.window.plan import ShardLookup
from rmq_store.settings.settings import GroupSettings, read_settings
from rmq_store.utils.host import Host
from rmq_store.window.sub_version import checked_subscription, subscription_text


def settings_check(path: str, *, required: bool) -> Check:
    """``required``: the user named the file, so that it must exist."""

    def look() -> str:
        if not required and not Path(path).exists():
            raise CheckSkipped(f"{path} does not exist; consume and replay need it")
        settings = read_settings(path)
        settings.check()
        groups = [group.name for group in settings.groups]
        return ": ".join([path, f"{len(groups)} groups", *([", ".join(groups)] if groups else [])])

    return Check("settings", look, "correct the file; all its problems are listed")


def listeners_check(path: str, add_folders: Callable[[], object], host: Host) -> Check:
    """Imports each listener as a window does, in a process of its own unless the settings say otherwise. Those of groups with
    ``engine = "spark"`` may be on the workers only, and are left out. ``add_folders``: makes the folders of listeners
    importable, or raises."""

    def look() -> str:
        add_folders()
        try:
            groups = read_settings(path).groups
        except RmqError as error:
            raise CheckSkipped("it needs settings that can be read") from error
        local = {group.listener: group for group in groups if group.engine != "spark"}
        versions, wrong = [], []
        for group in local.values():
            try:
                with opened_listener(group, host.now_ms) as listener:
                    versions.append(f"{listener.name} ({listener.version or 'no version'})")
            except ListenerError as error:
                wrong.append(f"group {group.name}: {error}")
        if wrong:
            raise ListenerError("; ".join(wrong))
        omitted = len({group.listener for group in groups} - local.keys())
        more = [f'{omitted} of groups with engine = "spark" are on Spark\'s workers'] if omitted else []
        return "; ".join([", ".join(versions) or "none to import here", *more])

    mend = "correct the listener, install its package, or add its folder to RMQ_LISTENER_PATH"
    return Check("listeners", look, mend)


def subscriptions_check(path: str, root: Callable[[], Root]) -> Check:
    """Checks whether windows with these settings would be refused because of their subscriptions."""

    def look() -> str:
        try:
            groups, shards = read_settings(path).groups, LakeStore.open(root()).named_shards()
            for shard in shards:
                shard.positions()
        except RmqError as error:
            raise CheckSkipped("it needs a store and settings that can be read") from error
        conflicts = {conflict for shard in shards for group in groups if (conflict := _conflict(shard, group))}
        if conflicts:
            raise WrongUse("; ".join(sorted(conflicts)))
        text = f"{len(groups)} groups have the subscriptions that {len(shards)} shards recorded, or newer ones"
        return "; ".join([text, *(note for group in groups if (note := _absorbs_apart(shards, group)))])

    return Check(
        "subscriptions", look, "correct the settings, or raise subscription_version where they are the newer ones"
    )


def _absorbs_apart(shards: Sequence[Shard], group: GroupSettings) -> str:
    """That the group absorbs duplicates in each of several shards on its own, "" where it does not."""
    if group.absorb_duplicates is None:
        return ""
    topics = {subscription.topic for subscription in group.subscriptions}
    names = [
        shard.name for shard in shards if _reads(group, shard) and topics & shard.positions().names(PositionKind.MAX)
    ]
    if len(names) < 2:
        return ""
    return (
        f"group {group.name} absorbs duplicates in each of {len(names)} shards on its own ({', '.join(names)}): a message that "
        "was sent to brokers of two of them is consumed twice (docs/limits.md, absorb_duplicates)"
    )


def _conflict(shard: Shard, group: GroupSettings) -> str:
    """The error with which a window of the group would be refused, "" for none."""
    if not _reads(group, shard):
        return ""
    try:
        checked_subscription(ShardLookup(shard), shard.positions(), group, subscription_text(group.subscriptions))
    except WrongUse as error:
        return str(error)
    return ""


def _reads(group: GroupSettings, shard: Shard) -> bool:
    return group.shards is None or shard.name in group.shards
