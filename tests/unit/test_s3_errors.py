"""What an error of Arrow's own S3 client, or of the file system, says to do."""

from errno import EACCES, EEXIST, EISDIR, ELOOP, ENOSPC

import pytest

from rmq_store.errors import StoreUnusable
from rmq_store.lake.table import s3
from rmq_store.lake.table.store_errors import explained

READING = "Invalid Input Error: reading the stream registered as 'msg' failed: IOError: "


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        # Arrow shows S3's words only where they fit into the range that it asked for.
        ("AWS Error ACCESS_DENIED during GetObject operation: ", "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ("AWS Error ACCESS_DENIED during GetObject operation: a test", "a test: check AWS_ACCESS_KEY_ID"),
        ("AWS Error NO_SUCH_BUCKET during GetObject operation: ", "operation: create the bucket"),
        ("AWS Error AUTHORIZATION_HEADER_MALFORMED during GetObject operation: ", "set AWS_REGION"),
        ("AWS Error INVALID_OBJECT_STATE during GetObject operation: ", "is in an archive"),
    ],
)
def test_an_error_of_arrow_says_what_to_do(error: str, remedy: str) -> None:
    assert remedy in s3.with_remedy(READING + error)


@pytest.mark.parametrize("error", ["AWS Error SLOW_DOWN during GetObject operation: ", "Couldn't deserialize thrift"])
def test_an_error_without_a_remedy_stays_as_it_is(error: str) -> None:
    assert s3.with_remedy(READING + error) == READING + error


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (ENOSPC, "Free space there"),
        (EEXIST, "Check what is at that path, such as a link to nothing"),
        (ELOOP, "Check what is at that path, such as a link to nothing"),
        (EISDIR, "Remove the folder that is in the place of that file"),
        (EACCES, "Check that this user may read and write that folder"),
    ],
)
def test_an_error_of_the_file_system_says_what_to_do(number: int, remedy: str) -> None:
    words = f"a store: of a test. {remedy}, or choose another root"
    with pytest.raises(StoreUnusable, match=words), explained("a store", ()):
        raise OSError(number, "of a test")
