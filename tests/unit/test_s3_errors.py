"""What an error of Arrow's own S3 client says to do."""

import pytest

from rmq_store.lake.table import s3

READING = "Invalid Input Error: reading the stream registered as 'msg' failed: IOError: "


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        # Arrow shows S3's words only where they fit into the range that it asked for.
        ("AWS Error ACCESS_DENIED during GetObject operation: ", "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ("AWS Error ACCESS_DENIED during GetObject operation: a test", "a test: check AWS_ACCESS_KEY_ID"),
        ("AWS Error NO_SUCH_BUCKET during GetObject operation: ", "operation: create the bucket"),
    ],
)
def test_an_error_of_arrow_says_what_to_do(error: str, remedy: str) -> None:
    assert remedy in s3.with_remedy(READING + error)


@pytest.mark.parametrize("error", ["AWS Error SLOW_DOWN during GetObject operation: ", "Couldn't deserialize thrift"])
def test_an_error_without_a_remedy_stays_as_it_is(error: str) -> None:
    assert s3.with_remedy(READING + error) == READING + error
