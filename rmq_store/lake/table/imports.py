"""The newest import of a broker, found by its position: whatever number of imports came before, one ctl file is read.

The first import of a broker name that continues the log of another one says so (``CONTINUES``); later ones name it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from rmq_store.broker_files.log_names import LogNames, QueueCuts, offsets_in_log
from rmq_store.broker_files.queue_generations import Generations, WithoutEntries
from rmq_store.commit.ctl import Action, Ctl, Observed
from rmq_store.commit.positions import PositionKind, QueueRange, diverged_id, import_id, max_id
from rmq_store.errors import BadData, StoreUnusable, WrongUse
from rmq_store.lake.table.import_parameters import IMPORTS, parameter_of_import
from rmq_store.lake.table.shard import Shard
from rmq_store.message.message import MessageQueue

CONFIGS_OF = "configs_of"
"""The parameter of an import whose broker had the configuration and the offsets that another commit recorded: its id."""

CONTINUES = "continues"
"""The parameter of the first import of a broker name that continues another one's log: ``broker_name`` of that one, ``end``,
the physical offset of the cut, and ``cuts``, the offset of the cut of each queue as [topic, queue id, offset]."""

CONTINUES_OF = "continues_of"
"""The parameter of its later imports: the id of the first one."""

GENERATIONS = "generations"
"""The parameter of an import with which queues of the broker got a new generation: the bases of all generations, as
``Generations.rows`` has them."""

BEGUN_AGAIN = "begun_again"
"""The parameter beside it: the queues that got one with this import, as [topic, queue id, base]."""

GENERATIONS_OF = "generations_of"
"""The parameter of the later imports of that broker: the id of that one."""

LAST_RECORDS = "last_records"
"""The parameter of an import whose fingerprint has not all of its last record: [begin, end, hash] of the last bytes of records,
physical offsets. An import that read no record has those of the one before."""

TAIL = "tail"
"""The parameter of an import: [begin, end, hash] of the last bytes of its log up to its last record, physical offsets, many
more than those of LAST_RECORDS. An import that read no record has those of the one before."""

END_NOTE = "end_note"
"""The parameter of an import behind whose end the log has bytes that were not imported: the note of it in words."""

HANDED_BACK_BY = "handed_back_by"
"""The parameter of an import after a hand-back: the id of that one."""


OFFSETS_FILE = "offsets_file"
"""The parameter of an import whose broker keeps its groups' offsets in another file than ``consumerOffset.json``: its name."""


POP_GROUPS = "pop_groups"
"""The parameter of an import whose broker has set groups to pop: [topic, group] of each."""

WITHOUT_ENTRIES = "without_entries"
"""The parameter of an import whose broker has no entry of queues that have messages here: the ``WithoutEntries`` of each."""

KV_STORE = "kv_store"
"""The parameter of an import whose broker has a database of popped messages."""


def last_import(shard: Shard, broker_name: str) -> Ctl | None:
    """The newest import of the broker in the handle's snapshot, None when nothing of the broker was imported.

    The position ``import/<broker>`` was updated at the import's store timestamp. Where it does not say when, as other
    tools may leave it, all imports are read.
    """
    positions, position = shard.positions(), import_id(broker_name)
    if positions.get(position) is None:
        return None
    at_ms = positions.updated_ms(position)
    for paths in shard.ctl_index.at(at_ms):
        ctls = [ctl for ctl in shard.ctls_in(paths) if ctl.store_timestamp == at_ms]
        if newest := _newest(ctls, broker_name):
            return newest
    return _newest(all_imports(shard), broker_name)


def all_imports(shard: Shard) -> list[Ctl]:
    """The imports of all brokers in the handle's snapshot, in no order. It reads a file for each."""
    return [ctl for action in IMPORTS for ctl in shard.ctls_since(0, action=action)]


def imports_of(shard: Shard, broker_name: str) -> list[Ctl]:
    """Those of the broker, oldest first."""
    ctls = (ctl for ctl in all_imports(shard) if ctl.parameter("broker_name") == broker_name)
    return sorted(ctls, key=lambda ctl: ctl.read_version)


def salvage_gaps(shard: Shard) -> Mapping[MessageQueue, Sequence[QueueRange]]:
    """By queue the offsets in which salvages found no message."""
    gaps: dict[MessageQueue, list[QueueRange]] = defaultdict(list)
    for ctl in shard.ctls_since(0, action=str(Action.SALVAGE)):
        for topic, queue_id, begin, end, _ in ctl.parameter("queue_gaps") or ():
            queue = MessageQueue(topic, parameter_of_import(ctl, "broker_name"), queue_id)
            gaps[queue].append(QueueRange(queue, begin, end))
    return gaps


def salvages_of(shard: Shard, broker_names: Collection[str]) -> list[Ctl]:
    """The salvages of the log with these names, oldest first."""
    ctls = shard.ctls_since(0, action=str(Action.SALVAGE))
    return [ctl for ctl in ctls if ctl.parameter("broker_name") in broker_names]


def salvaged_to(shard: Shard, broker_names: Collection[str]) -> int:
    """The physical offset up to which salvages may have left out records of the log with these names; 0: there was none."""
    return max((parameter_of_import(ctl, "range")[1] for ctl in salvages_of(shard, broker_names)), default=0)


def may_have_left_out(shard: Shard, broker_names: Collection[str], queue: MessageQueue) -> bool:
    """Whether salvages of the log with these names may have left out the first messages of a queue that has had none here.

    What was left out before the broker had the topic has none of them. Of a queue that is not known here none may be in the
    log, as the broker has removed them, unless the first import read it from its begin. All imports are read where a salvage
    has left out something.
    """
    if not any(ctl.parameter("skipped") for ctl in salvages_of(shard, broker_names)):
        return False
    imports = [ctl for ctl in all_imports(shard) if ctl.parameter("broker_name") in broker_names]
    imports.sort(key=lambda ctl: ctl.read_version)
    if shard.positions().get(max_id(queue)) is None and parameter_of_import(imports[0], "range")[0]:
        return False
    known_at = next((ctl.request_id for ctl in imports if _has_queue(ctl, queue)), imports[0].request_id)
    first = next(n for n, ctl in enumerate(imports) if ctl.request_id == known_at)  # its last part has the topics
    return any(ctl.parameter("skipped") for ctl in imports[first:])


def _has_queue(ctl: Ctl, queue: MessageQueue) -> bool:
    """Whether the broker's topics, where the import has recorded them, have the queue."""
    topics: Mapping[str, Mapping[str, int]] = ctl.parameter("topics") or {}
    return queue.topic in topics and topics[queue.topic]["read_queue_nums"] > queue.queue_id


def last_records_of(ctl: Ctl) -> list[Any] | None:
    """The last bytes of records that an import or a hand-back has recorded, as LAST_RECORDS has them: else those of its
    fingerprint. None: it has neither, as one that read nothing."""
    if records := ctl.parameter(LAST_RECORDS):
        return list(records)
    begin, digest = parameter_of_import(ctl, "fingerprint")
    return [begin, parameter_of_import(ctl, "range")[1], digest] if digest else None


def last_configs(shard: Shard, broker_name: str) -> Ctl | None:
    """The newest import of the broker that recorded its configuration and its offsets, because they differed from those
    recorded before. None where nothing of the broker was imported to its end."""
    newest = last_import(shard, broker_name)
    parameters = json.loads(newest.parameters) if newest else {}
    if CONFIGS_OF not in parameters:
        return newest
    return None if parameters[CONFIGS_OF] is None else shard.ctl_of(parameters[CONFIGS_OF])


def generations(shard: Shard, broker_name: str) -> Generations:
    """The generations of the broker's queues, as the lake has imported them."""
    ctl = _first_of_generations(shard, broker_name)
    return Generations() if ctl is None else Generations.of_rows(ctl.parameter(GENERATIONS))


def queues_without_entries(newest: Ctl | None) -> tuple[WithoutEntries, ...]:
    """Those of the broker at the import that recorded its configuration last (``last_configs``)."""
    rows = newest.parameter(WITHOUT_ENTRIES) if newest else None
    return tuple(WithoutEntries(*row) for row in rows or ())


def offsets_here(shards: Iterable[Shard], group: str, offsets: Mapping[MessageQueue, int]) -> dict[MessageQueue, int]:
    """A group's offsets at brokers as those in the queues of the shards that have imported them, of all names of a log. A queue
    of which the newest import found no entry is left out: it may have begun again, at a base that is not known yet.

    Raises WrongUse for a name whose log another one continues."""
    here = dict(offsets)
    for shard in shards:
        positions = shard.positions()
        for broker_name in positions.names(PositionKind.IMPORT) & {queue.broker_name for queue in offsets}:
            refuse_continued(shard, broker_name)
            names, queues = names_of_log(shard, broker_name), generations(shard, broker_name)
            empty = {one.key for one in queues_without_entries(last_configs(shard, broker_name))}
            before = positions.offsets_of(group)
            for queue in [queue for queue in offsets if queue.broker_name == broker_name]:
                offset = here.pop(queue) + queues.base(queue)
                if (queue.topic, queue.queue_id) not in empty:
                    here |= offsets_in_log(names.stretches(queue.topic, queue.queue_id), offset, before)
    return here


def generations_of(shard: Shard, broker_name: str) -> dict[str, str]:
    """The parameter of an import that follows: where the generations are recorded, empty where there are none."""
    ctl = _first_of_generations(shard, broker_name)
    return {GENERATIONS_OF: ctl.commit_id} if ctl else {}


def _first_of_generations(shard: Shard, broker_name: str) -> Ctl | None:
    """The import that recorded the generations of the broker's queues last."""
    return _newest_or_named(shard, broker_name, GENERATIONS, GENERATIONS_OF)


def names_of_log(shard: Shard, broker_name: str) -> LogNames:
    """The broker names of the log that was imported last under this one."""
    names = [broker_name]
    cuts: list[QueueCuts] = []
    while ctl := first_of_continued(shard, names[0]):
        continued = ctl.parameter(CONTINUES)
        names.insert(0, continued["broker_name"])
        cuts.insert(0, {(topic, queue_id): cut for topic, queue_id, cut in continued["cuts"]})
    return LogNames(tuple(names), tuple(cuts))


def first_of_continued(shard: Shard, broker_name: str) -> Ctl | None:
    """The import with which this broker name began to continue the log of another one, None where it does not."""
    if not shard.positions().names(PositionKind.DIVERGED):
        return None
    return _newest_or_named(shard, broker_name, CONTINUES, CONTINUES_OF)


def _newest_or_named(shard: Shard, broker_name: str, name: str, name_of: str) -> Ctl | None:
    """The broker's newest import if it has the parameter ``name``, or the commit that its parameter ``name_of`` names. Raises
    BadData when that one has not the parameter: what an import goes on from is not known then."""
    newest = last_import(shard, broker_name)
    parameters = json.loads(newest.parameters) if newest else {}
    if name in parameters:
        return newest
    if name_of not in parameters:
        return None
    named = shard.ctl_of(parameters[name_of])
    if named is None:
        raise BadData(
            f"shard {shard.name} has no commit {parameters[name_of]}, which by the newest import of broker {broker_name} has "
            f"the parameter {name}: a record was changed or removed. Restore the shard from a backup"
        )
    parameter_of_import(named, name)
    return named


def next_name(shard: Shard, broker_name: str) -> str | None:
    """The broker name that continues the log of this one, None: none does. Raises BadData where its import is missing."""
    if shard.positions().get(diverged_id(broker_name)) is None:
        return None
    firsts = {name: first_of_continued(shard, name) for name in _brokers(shard)}
    for name, ctl in firsts.items():
        if ctl and ctl.parameter(CONTINUES)["broker_name"] == broker_name:
            return name
    raise BadData(
        f"shard {shard.name} has no import that continues the log of broker {broker_name}, which by the position "
        f"{diverged_id(broker_name)} was continued: the position, a record or another position was changed or removed. Restore "
        "the shard from a backup"
    )


def refuse_continued(shard: Shard, broker_name: str) -> None:
    """Raises WrongUse when another broker name continues the log of this one: whoever means the log means that name."""
    if name := next_name(shard, broker_name):
        raise WrongUse(
            f"broker {broker_name} lost the end of its log, which goes on as broker {name}: use that name (--broker {name} "
            f"--shard {shard.name})"
        )


def observed(shard: Shard) -> list[Observed]:
    """The offsets that each broker's files had at its newest import."""
    recorded = (last_configs(shard, broker_name) for broker_name in _open_brokers(shard))
    return [seen for ctl in recorded if ctl is not None for seen in ctl.observed]


def handed_back(shard: Shard, broker_name: str) -> list[Ctl]:
    """The hand-backs of the broker, oldest first."""
    ctls = shard.ctls_since(0, action=str(Action.HAND_BACK))
    return [ctl for ctl in ctls if ctl.parameter("broker_name") == broker_name]


def last_hand_back(shard: Shard, broker_name: str) -> Ctl | None:
    """The newest hand-back of the broker, as its newest import names it."""
    newest = last_import(shard, broker_name)
    if newest is None or newest.action is Action.HAND_BACK:
        return newest
    commit_id = json.loads(newest.parameters).get(HANDED_BACK_BY)
    return shard.ctl_of(commit_id) if commit_id else None


def handed_back_by(shard: Shard, broker_name: str) -> dict[str, str]:
    """The parameter of an import that follows: which commit handed the broker back last, empty where none did."""
    ctl = last_hand_back(shard, broker_name)
    return {HANDED_BACK_BY: ctl.commit_id} if ctl else {}


def parameters_of_next(shard: Shard, broker_name: str) -> dict[str, Any]:
    """The parameters of a commit that follows the newest import of the broker without reading anything of its log."""
    newest, configs = last_import(shard, broker_name), last_configs(shard, broker_name)
    if newest is None or configs is None:
        raise StoreUnusable(f"the last import of broker {broker_name} is missing in shard {shard.name}")
    end = parameter_of_import(newest, "range")[1]
    first = first_of_continued(shard, broker_name)
    records = newest.parameter(LAST_RECORDS)
    return {
        "broker_name": broker_name,
        "range": [end, end],
        "messages": 0,
        "fingerprint": parameter_of_import(newest, "fingerprint"),
        **({LAST_RECORDS: records} if records else {}),
        **({TAIL: tail} if (tail := newest.parameter(TAIL)) else {}),
        **({END_NOTE: note} if (note := newest.parameter(END_NOTE)) else {}),
        "topics": configs.parameter("topics"),
        "groups": configs.parameter("groups"),
        **{
            name: value
            for name in (OFFSETS_FILE, POP_GROUPS, KV_STORE, WITHOUT_ENTRIES)
            if (value := configs.parameter(name))
        },
        **({CONTINUES_OF: first.commit_id} if first else {}),
        **generations_of(shard, broker_name),
    }


def incomplete_imports(shard: Shard) -> dict[str, int]:
    """The brokers whose newest import is not at its end, and the physical offset up to which their logs were imported."""
    newest = {broker_name: last_import(shard, broker_name) for broker_name in _open_brokers(shard)}
    return {
        name: parameter_of_import(ctl, "range")[1] for name, ctl in newest.items() if ctl and not ctl.request_complete
    }


def files_of_newest(shard: Shard) -> set[str | None]:
    """The ctl files that the functions of this module read. They stay what they are in a compaction: in a joined file a
    commit is not found by its time."""
    newest = [find(shard, name) for name in _brokers(shard) for find in _FINDERS]
    return {shard.ctl_file_of(ctl.commit_id) for ctl in newest if ctl is not None}


_FINDERS = (last_import, last_configs, first_of_continued, _first_of_generations)


def _brokers(shard: Shard) -> list[str]:
    return sorted(shard.positions().names(PositionKind.IMPORT))


def _open_brokers(shard: Shard) -> list[str]:
    """Without those whose log is imported under another name now: its imports record what was observed for both."""
    positions = shard.positions()
    return [name for name in _brokers(shard) if positions.get(diverged_id(name)) is None]


def _newest(ctls: list[Ctl], broker_name: str) -> Ctl | None:
    imports = [ctl for ctl in ctls if ctl.action in IMPORTS and ctl.parameter("broker_name") == broker_name]
    return max(imports, key=lambda ctl: ctl.read_version, default=None)
