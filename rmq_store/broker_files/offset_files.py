"""Offset files that ``rmq offsets import`` reads: a broadcasting client's ``offsets.json``, a broker's ``consumerOffset.json``.

Their keys tell them apart: a client's are queues, a broker's ``topic@group``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rmq_store.broker_files.broker_json import object_of, parse
from rmq_store.broker_files.config_files import parse_consumer_offsets
from rmq_store.broker_files.local_offsets import parse_local_offsets
from rmq_store.errors import BadData, WrongUse
from rmq_store.message.message import MessageQueue
from rmq_store.utils.small_file import read_small_file


@dataclass(frozen=True, slots=True)
class FoundOffsets:
    """Next offsets to read."""

    offsets: dict[MessageQueue, int]
    used: Path
    """The file that was read, which may be the ``.bak``."""
    note: str = ""
    """Why it was the ``.bak``."""


def read_offsets(path: Path, group: str, broker_name: str | None) -> FoundOffsets:
    """The offsets of a group, or of a client ``group@client``, by the rule of both files: one that is missing, blank
    or unreadable gives way to its ``.bak``.

    ``broker_name``: the broker of the file. A broker's file does not name it, a client's does for each queue. Raises WrongUse
    when neither name is that of a file that this user can read, or when the group or the broker's name does not fit the kind
    of file; BadData when a file has no offsets that can be read.
    """
    why_not: list[str] = []
    found_one = False
    for file in (path, path.with_name(f"{path.name}.bak")):
        try:
            text = read_small_file(file).decode("utf-8", "replace")
            found_one = True
            if text.strip():
                offsets = _offsets_of(text, file, group, broker_name)
                return FoundOffsets(offsets, file, f"{why_not[0]}, so {file.name} is used" if why_not else "")
            why_not.append(f"{file} is empty")
        except OSError as error:
            why_not.append(f"{file}: {error.strerror or error}")
        except BadData as error:
            why_not.append(f"{file} cannot be read ({error})")
    kind = BadData if found_one else WrongUse
    raise kind(f"{'; '.join(why_not)}. Give a client's offsets.json or a broker's consumerOffset.json")


def _offsets_of(text: str, file: Path, group: str, broker_name: str | None) -> dict[MessageQueue, int]:
    table = object_of(object_of(parse(text)).get("offsetTable"))
    if any(isinstance(key, tuple) for key in table):
        if "@" not in group:
            raise WrongUse(f"{file} belongs to a broadcasting client: give the client as the group, {group}@CLIENT")
        offsets = parse_local_offsets(text)
        return {queue: offset for queue, offset in offsets.items() if broker_name in (None, queue.broker_name)}
    if broker_name is None:
        raise WrongUse(f"{file} belongs to a broker but does not name it: give the name with --broker")
    commits = list(parse_consumer_offsets(text).commits())
    return {
        MessageQueue(topic, broker_name, queue): offset for topic, owner, queue, offset in commits if owner == group
    }
