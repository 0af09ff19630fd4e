"""The retry topics of groups that pop, which no group of this store reads (rules 12).

The form V2, ``%RETRY%<group>+<topic>``, says its group. The default V1, ``%RETRY%<group>_<topic>``, may also be the retry topic
of a group whose name ends like a topic's: what the broker knows of its groups tells the two apart.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from rmq_store.message.message_const import (
    RETRY_GROUP_TOPIC_PREFIX,
    pop_normal_topic,
    pop_retry_group,
    pop_retry_topic_v1,
    retry_topic,
)


def pop_retry_topics(
    topics: Collection[str],
    groups: Collection[str],
    popping: Iterable[tuple[str, str]],
    readers: Iterable[tuple[str, str]],
) -> dict[str, str]:
    """The group of each of ``topics`` that is a pop retry topic.

    ``groups``: those that the broker knows; ``popping``: topic and group where it has set them to pop; ``readers``: topic and
    group where a group has an offset. The offset of another group than the name's says that this one pops.
    """
    owners = {topic: group for topic, group in readers if _is_of(topic, group)}
    owners |= {pop_retry_topic_v1(topic, group): group for topic, group in popping}
    for name in topics:
        group = None if name in owners else _named_group(name, topics, groups)
        if group is not None:
            owners[name] = group
    return {name: group for name, group in owners.items() if name in topics}


def is_given_out(topic: str, group: str, topics: Collection[str]) -> bool:
    """Whether a broker with these ``topics`` gives messages of the topic, or of a pop retry topic, to a group that pops.
    Without any topics it is not known which it has, and the answer is yes.

    To delete a topic at the broker deletes its pop retry topics, and the messages that were popped from it are not given out
    again (``PopReviveService#mergeAndRevive``).
    """
    return not topics or (topic in topics and _normal_topic(topic, group) in topics)


def _normal_topic(topic: str, group: str) -> str:
    """The topic of which a pop retry topic has the retries, else the topic itself."""
    return topic[len(retry_topic(group)) + 1 :] if _is_of(topic, group) else topic


def _named_group(name: str, topics: Collection[str], groups: Collection[str]) -> str | None:
    """The group of a pop retry topic by its name; None: it is another topic."""
    rest = name.removeprefix(RETRY_GROUP_TOPIC_PREFIX)
    if pop_normal_topic(name) != name:
        return pop_retry_group(name)
    if rest == name or rest in groups:
        return None
    return next((group for group in sorted(groups) if rest.removeprefix(f"{group}_") in topics and rest != group), None)


def _is_of(topic: str, group: str) -> bool:
    """Whether a group that pops from the topic reads it as a pop retry topic of its own."""
    return topic.startswith((f"{retry_topic(group)}_", f"{retry_topic(group)}+"))
