"""Which fields the record of a commit has, by its action: what the modules that make a ``Ctl`` fill in.

The audit compares each record with it (``lake/audit/records.py``). Fields are named as the columns of a ctl row.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rmq_store.commit.ctl import Action

Actions = frozenset[Action]

_EVERY: Actions = frozenset(Action)
_CLAIMS: Actions = frozenset({Action.CLAIM, Action.RENEW, Action.RELEASE})
_MOVES: Actions = frozenset({Action.RESET, Action.REPLAY, Action.CLONE, Action.DELETE, Action.UNDO})
_IMPORTS: Actions = frozenset({Action.IMPORT, Action.SALVAGE})
_CONSUME: Actions = frozenset({Action.CONSUME})
_OF_GROUP = _MOVES | {Action.CONSUME, Action.DELIVER, Action.REDRIVE}


@dataclass(frozen=True, slots=True)
class FieldRule:
    """The actions whose records have a field: a value that is not null, or a list with items. The records of all others have
    null, or an empty list."""

    always: Actions = frozenset()
    sometimes: Actions = frozenset()

    @property
    def possible(self) -> Actions:
        return self.always | self.sometimes


FIELDS: Mapping[str, FieldRule] = {
    "commit_id": FieldRule(_EVERY),
    "action": FieldRule(_EVERY),
    "request_id": FieldRule(_EVERY),
    "group_name": FieldRule(_OF_GROUP, _CLAIMS),
    "window_id": FieldRule(_CONSUME),
    "store_timestamp": FieldRule(_EVERY),
    "request_part": FieldRule(_EVERY),
    "request_complete": FieldRule(_EVERY),
    "epoch": FieldRule(_OF_GROUP),
    "read_version": FieldRule(_EVERY),
    "actor": FieldRule(_EVERY),
    "actor_source": FieldRule(_EVERY),
    "reason": FieldRule(_EVERY),
    "parameters": FieldRule(_EVERY),
    "subscription": FieldRule(sometimes=_CONSUME),
    "subscription_version": FieldRule(sometimes=_CONSUME),
    "listener": FieldRule(_CONSUME),
    "consumed": FieldRule(sometimes=frozenset({Action.CONSUME, Action.DELIVER, Action.REDRIVE})),
    "produced": FieldRule(
        frozenset({Action.SEND}), _IMPORTS | {Action.CONSUME, Action.DELIVER, Action.REDRIVE, Action.COMPACT}
    ),
    "moved": FieldRule(sometimes=_IMPORTS | _MOVES | {Action.CUTOVER, Action.HAND_BACK}),
    "observed": FieldRule(sometimes=_IMPORTS | {Action.HAND_BACK}),
    "blocked": FieldRule(sometimes=_CONSUME),
    "files": FieldRule(
        sometimes=_IMPORTS | {Action.CONSUME, Action.DELIVER, Action.SEND, Action.REDRIVE, Action.COMPACT}
    ),
}
"""Every field of a record. Records of an earlier version lack ``files``."""

TOGETHER = (("subscription", "subscription_version"),)
"""Fields of which a record has both or none."""

NULL_IN_ITEMS: Mapping[str, frozenset[str]] = {
    "consumed": frozenset(),
    "produced": frozenset({"deliver_at", "tags_codes"}),
    "moved": frozenset({"from_offset"}),
    "observed": frozenset(),
    "blocked": frozenset({"first_failed_at", "error_type", "error_text"}),
    "files": frozenset({"sha256"}),
}
"""The fields of the items of each list that may be null; all others have a value."""

_OF_IMPORT = frozenset({"broker_name", "range", "messages", "fingerprint"})
PARAMETERS: Mapping[Action, frozenset[str]] = {
    Action.IMPORT: _OF_IMPORT,
    Action.SALVAGE: _OF_IMPORT,
    Action.HAND_BACK: _OF_IMPORT,
    Action.CUTOVER: frozenset({"broker_name"}),
    Action.RETENTION: frozenset({"removed"}),
}
"""The parameters that all records of an action have, and without which a later commit of a broker or a queue is refused."""

WITH_PASS: Actions = _CONSUME
"""The actions whose consumed ranges may be of another pass than 0."""
