"""What the errors of the file system and of S3 mean for who wants to do something with a store."""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError

from rmq_store.errors import MissingFile, StoreUnusable, clause
from rmq_store.lake.table import s3
from rmq_store.utils.small_file import NotAFile

_REFUSED = re.compile(
    r"access_?denied|permission denied|403 forbidden|with 403|invalid_?access_?key_?id|signature_?does_?not_?match|"
    r"expired_?token|no credentials|no_?such_?bucket|create the bucket|no table at",
    re.IGNORECASE,
)
_REFUSALS = {errno.ENOENT, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM}


def is_refused(error: Exception) -> bool:
    """Whether trying again cannot help: no such table, folder or bucket, no permission, no space. delta-rs says so only in its
    messages, as do the errors of a root, so this decides about waiting, never about whether something was written."""
    answers = (error, error.__cause__)
    return any(isinstance(answer, OSError) and answer.errno in _REFUSALS for answer in answers) or (
        _REFUSED.search(str(error)) is not None
    )


def is_damage(error: Exception) -> bool:
    """Whether the bytes of a Parquet file are wrong, so that reading them again would not help. Arrow raises ArrowInvalid
    then, or, inside a data page, an OSError that is not the operating system's."""
    return isinstance(error, pa.ArrowInvalid) or (isinstance(error, OSError) and error.errno is None)


@contextmanager
def explained(what: str, options: s3.Options) -> Iterator[None]:
    """Turn errors of the file system and of S3 into FileNotFoundError, MissingFile (something else is in the place of a file)
    or StoreUnusable. ``what`` begins their messages.

    botocore's errors may have the endpoint with a password in it, so they are not the cause of these.
    """
    try:
        yield
    except FileNotFoundError:
        raise
    except ClientError as error:
        if s3.code_of(error) in s3.MISSING and error.operation_name != "HeadBucket":
            raise FileNotFoundError(f"{what}: it is not there") from error
        raise StoreUnusable(f"{what}: {s3.without_secrets(options, s3.in_words(error))}") from None
    except NoCredentialsError as error:
        raise StoreUnusable(f"{what}: no credentials. Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.") from error
    except BotoCoreError as error:
        reason = s3.without_secrets(options, str(error))
        raise StoreUnusable(f"{what}: {reason} Check AWS_ENDPOINT_URL and the network.") from None
    except NotAFile as error:
        raise MissingFile(
            f"{what}: {error.strerror}. Remove it, and restore the file from a backup under the same name"
        ) from error
    except OSError as error:
        raise StoreUnusable(
            f"{what}: {clause(error.strerror or error)}. {_remedy(error)}, or choose another root."
        ) from error


def _remedy(error: OSError) -> str:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return "Free space there"
        case errno.EEXIST | errno.ELOOP:
            return "Check what is at that path, such as a link to nothing"
        case errno.EISDIR:
            return "Remove the folder that is in the place of that file"
    return "Check that this user may read and write that folder"
