"""Spark SQL over ``s3://`` roots: S3A's settings, and the error of a session without its jars."""

from __future__ import annotations

import pytest

from rmq_store.errors import StoreUnusable
from spark_jobs.s3a import knows_region, s3a_explained, s3a_settings


def test_s3a_gets_the_settings_of_a_root() -> None:
    keys = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret"}
    settings = s3a_settings({"AWS_ENDPOINT_URL": "http://127.0.0.1:9000/", **keys})
    assert settings == {
        "spark.hadoop.fs.s3a.endpoint": "http://127.0.0.1:9000",
        "spark.hadoop.fs.s3a.endpoint.region": "us-east-1",
        "spark.hadoop.fs.s3a.path.style.access": "true",
        "spark.hadoop.fs.s3a.connection.ssl.enabled": "false",
    }
    assert s3a_settings({"AWS_REGION": "eu-west-1"}) == {"spark.hadoop.fs.s3a.endpoint.region": "eu-west-1"}
    assert knows_region({"AWS_REGION": "eu-west-1"})


def test_a_server_for_a_store_in_a_folder_needs_no_region(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the jars of S3A were fetched."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    assert not knows_region({})


@pytest.mark.parametrize(
    "text",
    [
        "java.lang.ClassNotFoundException: Class org.apache.hadoop.fs.s3a.S3AFileSystem not found",
        'org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3a"',
    ],
)
def test_a_session_without_s3a_is_an_error_that_says_how_to_get_it(text: str) -> None:
    with pytest.raises(StoreUnusable, match="make jars-s3a"), s3a_explained():
        raise RuntimeError(text)


def test_another_error_stays_what_it_is() -> None:
    with pytest.raises(RuntimeError, match="403"), s3a_explained():
        raise RuntimeError("S3AFileSystem: 403")
