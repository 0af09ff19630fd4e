"""What a connection's fields say, as the environment variables that they replace."""

from __future__ import annotations

from typing import Any

import pytest

from rmq_store.airflow.deployment import variables_of


@pytest.mark.parametrize(
    ("login", "password", "extra", "variables"),
    [
        (None, None, {}, {}),
        ("", " ", {"root": "", "engine": "auto"}, {}),
        (None, None, {"root": " s3://b/p ", "settings": None}, {"RMQ_ROOT": "s3://b/p"}),
        ("id", "key", {}, {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "key", "AWS_SESSION_TOKEN": ""}),
        (
            None,
            None,
            {"spark_remote": "sc://h"},
            {"SPARK_REMOTE": "sc://h", "RMQ_SPARK_MASTER": "", "RMQ_SPARK_SUBMIT": ""},
        ),
        (
            None,
            None,
            {"spark_master": "yarn", "spark_submit": "spark-submit --queue etl"},
            {"SPARK_REMOTE": "", "RMQ_SPARK_MASTER": "yarn", "RMQ_SPARK_SUBMIT": "spark-submit --queue etl"},
        ),
    ],
    ids=[
        "nothing",
        "empty fields",
        "a root",
        "keys end a session token",
        "a server, no master",
        "a master by spark-submit, no server",
    ],
)
def test_a_field_replaces_a_variable(
    login: str | None, password: str | None, extra: dict[str, Any], variables: dict[str, str]
) -> None:
    assert variables_of(login, password, extra) == variables
