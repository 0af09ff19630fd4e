"""What a broker's configuration file says, read as Java reads properties."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_store.broker_files.broker_conf import message_delay_level, parse_properties
from rmq_store.errors import WrongUse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("brokerName = broker-a\nmessageDelayLevel=1s 5s 10s", "1s 5s 10s"),
        ("  messageDelayLevel : 2s 4s\r\n", "2s 4s"),
        ("messageDelayLevel 2s 4s", "2s 4s"),
        ("messageDelayLevel=1s 2s \\\n   3s", "1s 2s 3s"),
        ("messageDelayLevel=1s\\u00202s", "1s 2s"),
        ("messageDelay\\\nLevel=1s", "1s"),
        ("messageDelayLevel=9s\nmessageDelayLevel=1s", "1s"),
        ("#messageDelayLevel=1s\n! messageDelayLevel=2s\n\n", None),
        ("# a comment \\\nmessageDelayLevel=1s", "1s"),
        ("otherLevel=1s", None),
        ("messageDelayLevel", ""),
        ("messageDelayLevel=1s \\\\\nx=y", "1s \\"),
    ],
)
def test_a_key_is_read_as_java_reads_it(tmp_path: Path, text: str, expected: str | None) -> None:
    assert parse_properties(text).get("messageDelayLevel") == expected
    file = tmp_path / "broker.conf"
    file.write_text(text)
    assert message_delay_level(file) == expected


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match=r"broker\.conf cannot be read: No such file"):
        message_delay_level(tmp_path / "broker.conf")
