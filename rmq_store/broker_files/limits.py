"""The limits of an import that protect against files without end: defaults, and the highest values that are allowed."""

from __future__ import annotations

from typing import Final

MAX_CONFIG_BYTES: Final = 64 << 20
"""Default limit of a config file. RocketMQ has none; ``topics.json`` of a broker with 100,000 topics has about 20 MB."""

MOST_CONFIG_BYTES: Final = 1 << 30

MAX_QUEUES: Final = 65_536
"""Default limit of the queues of a topic, or of a group's retry topic. RocketMQ's own limit is that of an int."""

MOST_QUEUES: Final = 1 << 20
