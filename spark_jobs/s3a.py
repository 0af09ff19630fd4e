"""Spark SQL over ``s3://`` roots: Spark reads them through Hadoop's S3A, whose jars are fetched only on demand.

Windows and imports do not need it: their tasks read S3 with pyarrow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rmq_store.errors import StoreUnusable
from rmq_store.lake.table.s3 import options_from

GROUP = "s3a"
"""Of the jars in ``jars.lock``."""
_MISSING = ("org.apache.hadoop.fs.s3a.S3AFileSystem not found", 'No FileSystem for scheme "s3a"')


def s3a_settings(env: Mapping[str, str]) -> dict[str, str]:
    """S3A's settings for the same ``AWS_*`` variables that a root uses; Spark itself takes the credentials from them.

    Raises StoreUnusable when the region is not known.
    """
    known = dict(options_from(env))
    settings = {"endpoint.region": known["AWS_REGION"]}
    if endpoint := known.get("AWS_ENDPOINT_URL"):
        settings |= {
            "endpoint": endpoint,
            "path.style.access": "true",
            "connection.ssl.enabled": str(not endpoint.startswith("http://")).lower(),
        }
    return {f"spark.hadoop.fs.s3a.{key}": value for key, value in settings.items()}


def knows_region(env: Mapping[str, str]) -> bool:
    """Whether ``s3a_settings`` has what it needs. A store in a folder needs no region."""
    try:
        return bool(options_from(env))
    except StoreUnusable:
        return False


@contextmanager
def s3a_explained() -> Iterator[None]:
    """Turn Spark's error of a session without S3A into StoreUnusable, which says how to get it."""
    try:
        yield
    except Exception as error:  # classic and Connect have different classes for it
        if any(text in str(error) for text in _MISSING):
            raise StoreUnusable(
                "this Spark session cannot read s3:// roots, as it has no S3A: fetch its jars (690 MB) with 'make jars-s3a' "
                "or 'python -m spark_jobs.jars --group s3a', in an image with the build argument JAR_GROUPS='delta s3a', and "
                "open the session with open_session(..., s3a=True); a Connect server that starts then has them. 'rmq sql' "
                "needs no jars"
            ) from error
        raise
