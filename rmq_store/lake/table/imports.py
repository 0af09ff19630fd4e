"""The newest import of a broker, found by its position: whatever number of imports came before, one ctl file is read."""

from __future__ import annotations

from rmq_store.commit.ctl import Action, Ctl, Observed
from rmq_store.commit.positions import PositionKind, import_id
from rmq_store.lake.table.shard import Shard

_IMPORTS = (Action.IMPORT, Action.SALVAGE)


def last_import(shard: Shard, broker_name: str) -> Ctl | None:
    """The newest import of the broker in the handle's snapshot, None when nothing of the broker was imported.

    The position ``import/<broker>`` was updated at the import's store timestamp. Where it does not say when, as other
    tools may leave it, all imports are read.
    """
    positions, position = shard.positions(), import_id(broker_name)
    if positions.get(position) is None:
        return None
    at_ms = positions.updated_ms(position)
    ctls = shard.ctls_in(shard.ctl_index.at(at_ms))
    if newest := _newest([ctl for ctl in ctls if ctl.store_timestamp == at_ms], broker_name):
        return newest
    return _newest([ctl for action in _IMPORTS for ctl in shard.ctls_since(0, action=action)], broker_name)


def observed(shard: Shard) -> list[Observed]:
    """The offsets that the newest import of each broker saw in the broker's files."""
    newest = (last_import(shard, broker_name) for broker_name in sorted(shard.positions().names(PositionKind.IMPORT)))
    return [seen for ctl in newest if ctl is not None for seen in ctl.observed]


def _newest(ctls: list[Ctl], broker_name: str) -> Ctl | None:
    imports = [ctl for ctl in ctls if ctl.action in _IMPORTS and ctl.parameter("broker_name") == broker_name]
    return max(imports, key=lambda ctl: ctl.read_version, default=None)
