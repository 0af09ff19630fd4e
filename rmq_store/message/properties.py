"""Message properties: their text in a record, the rule for user properties, and the tags code (rules 1.5, 2.1).

The text is ``name 0x01 value 0x02`` for each property. Nothing is escaped: a value with 0x02 is cut there, and
RocketMQ's parser drops an empty value. RocketMQ writes the properties in the order of a hash map, here it is the order
of the mapping.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

from rmq_store.errors import WrongUse
from rmq_store.message.java_text import JAVA_BLANKS
from rmq_store.message.message_const import NAME_VALUE_SEPARATOR, PROPERTY_SEPARATOR, RESERVED_PROPERTY_NAMES


def parse_properties(text: str | None) -> dict[str, str]:
    """The map of a text (``MessageDecoder#string2messageProperties``): entries without a name or a value are
    dropped."""
    properties = {}
    for entry in (text or "").split(PROPERTY_SEPARATOR):
        name, _, value = entry.partition(NAME_VALUE_SEPARATOR)
        if name and value:
            properties[name] = value
    return properties


def properties_text(properties: Mapping[str, str | None]) -> str:
    """The text of a map (``MessageDecoder#messageProperties2String``): a None is left out, an "" is written."""
    return "".join(
        f"{name}{NAME_VALUE_SEPARATOR}{value}{PROPERTY_SEPARATOR}"
        for name, value in properties.items()
        if value is not None
    )


def check_user_property(name: str | None, value: str | None) -> None:
    """Refuse what ``Message.putUserProperty`` refuses.

    :raises WrongUse: the name is reserved, or name or value is blank.
    """
    if name in RESERVED_PROPERTY_NAMES:
        raise WrongUse(f"The Property<{name}> is used by system, input another please")
    if not (name and name.strip(JAVA_BLANKS) and value and value.strip(JAVA_BLANKS)):
        raise WrongUse("The name or value of property can not be null or blank string!")


def tags_code(tags: str | None) -> int:
    """Java's ``String.hashCode`` of the tag: signed 32 bits over UTF-16 units; 0 without a tag
    (``MessageExtBrokerInner#tagsString2tagsCode``, rules 2.1)."""
    if not tags:
        return 0
    code = 0
    units = tags.encode("utf-16-be", "surrogatepass")
    for unit in struct.unpack(f">{len(units) // 2}H", units):
        code = (31 * code + unit) & 0xFFFFFFFF
    return code - 0x1_0000_0000 if code >= 0x8000_0000 else code
