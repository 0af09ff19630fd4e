"""S3 for ``object_store.py``: settings, clients, the two calls that need care, and the texts of errors.

"Options" are delta-rs storage options, as sorted pairs so that they can be hashed.
boto3 is imported where it is needed: its import takes a quarter of a second, which a store in a folder does not need.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.fs
import tenacity
import urllib3.exceptions
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    FlexibleChecksumError,
    HTTPClientError,
    IncompleteReadError,
    NoCredentialsError,
    ReadTimeoutError,
    ResponseStreamingError,
)

from rmq_store.commit.append import PutAnswer
from rmq_store.errors import CommitOutcomeUnknown, StoreUnusable
from rmq_store.lake.table.request_counter import count_requests_of
from rmq_store.utils.host import monotonic_ms, random_name
from rmq_store.utils.redaction import cleaned, secret_values

if TYPE_CHECKING:
    from botocore.loaders import Loader
    from mypy_boto3_s3 import S3Client
    from mypy_boto3_s3.type_defs import GetObjectOutputTypeDef, HeadObjectOutputTypeDef, ObjectIdentifierTypeDef

Options = tuple[tuple[str, str], ...]

MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
LOST_RACE = frozenset({"412", "PreconditionFailed"})
_TRY_AGAIN = frozenset({"409", "ConditionalRequestConflict"})
_PAST_THE_END = frozenset({"416", "InvalidRange"})
_TIMED_OUT = 408
_TOO_MANY = 429
_BUSY = frozenset({"InternalError", "SlowDown", "ServiceUnavailable", "RequestTimeout"})
"""Of one of several objects, in an answer whose own status is 200."""
_KEYS_OF_A_DELETE = 1000
_PART_BYTES = 10_000_000
"""A data file of fewer bytes is written by one request; a larger one in parts of this size, several at once."""

_ATTEMPTS = 5
"""HTTP requests per call, with botocore's own waits, which are random and up to 1, 2, 4 and 8 seconds."""
_CREATES = 2
"""How often an object is created of which the store says that it is there, and then that it is not."""
CONNECT_TIMEOUT_S = 5
READ_TIMEOUT_S = 60
"""How long a client waits for the next bytes of an answer. Tests shorten it."""

_CLOCK_TRUST_MS = 60_000
_SAY_TIME = (
    "rmq needs the store's time, like 'Thu, 26 Nov 2026 17:10:00 GMT': correct the store, or the proxy before it"
)

_CREDENTIALS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
_CREATED_BY = "rmq-created-by"
_CHECK_KEYS = "check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and what they are allowed to do"

_ARROWS_CODE = re.compile(r"AWS Error (\w+) during")
"""How Arrow's own client names S3's code: ACCESS_DENIED for AccessDenied."""
_REMEDIES = {
    "NoSuchBucket": "create the bucket, or correct the root",
    "404": "create the bucket, or correct the root",
    "InvalidAccessKeyId": "the store does not know this AWS_ACCESS_KEY_ID: correct it",
    "SignatureDoesNotMatch": "AWS_SECRET_ACCESS_KEY does not match AWS_ACCESS_KEY_ID: correct them",
    "RequestTimeTooSkewed": "the clocks of this machine and of the store are too far apart: set this machine's clock",
    "ExpiredToken": "the session token has expired: get a new one",
    "AccessDenied": _CHECK_KEYS,
    "403": _CHECK_KEYS,
    "301": "set AWS_REGION to the region of the bucket",
    "PermanentRedirect": "set AWS_REGION to the region of the bucket",
    "AuthorizationHeaderMalformed": "set AWS_REGION to the region of the bucket",
    "InvalidObjectState": "the object is in an archive: restore it there, and archive none of a store's",
}


def options_from(env: Mapping[str, str]) -> Options:
    """Options from the usual ``AWS_*`` variables; other sources of credentials are left to each library's own chain.

    Raises StoreUnusable when the region is not known.
    """
    options = {name: env[name] for name in _CREDENTIALS if env.get(name)}
    region = env.get("AWS_REGION") or env.get("AWS_DEFAULT_REGION")
    if endpoint := env.get("AWS_ENDPOINT_URL_S3") or env.get("AWS_ENDPOINT_URL"):
        options["AWS_ENDPOINT_URL"] = endpoint.rstrip("/")
        if endpoint.startswith("http://"):
            options["AWS_ALLOW_HTTP"] = "true"
        region = region or "us-east-1"  # what stores without regions expect in a signature
    if not region:
        import boto3

        region = boto3.Session().region_name
    if not region:
        raise StoreUnusable("the region of the bucket is not known: set AWS_REGION")
    return tuple(sorted((options | {"AWS_REGION": region}).items()))


@functools.cache
def _loader() -> Loader:
    """What has read the description of S3, 50 ms of CPU, which each session would read again."""
    from botocore.loaders import create_loader

    return create_loader()


@functools.lru_cache(maxsize=16)
def client(options: Options, attempts: int = _ATTEMPTS) -> S3Client:
    """One boto3 client per process and set of options; threads may share it. ``attempts``: HTTP requests per call."""
    import boto3
    from botocore.config import Config
    from botocore.session import get_session

    from rmq_store.lake.table.s3_connection import refuse_cut_heads

    known = dict(options)
    endpoint = known.get("AWS_ENDPOINT_URL")
    session = get_session()
    session.register_component("data_loader", _loader())
    s3 = boto3.Session(botocore_session=session).client(
        "s3",
        endpoint_url=endpoint,
        region_name=known["AWS_REGION"],
        aws_access_key_id=known.get("AWS_ACCESS_KEY_ID"),
        aws_secret_access_key=known.get("AWS_SECRET_ACCESS_KEY"),
        aws_session_token=known.get("AWS_SESSION_TOKEN"),
        config=Config(
            retries={"mode": "standard", "total_max_attempts": attempts},
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            max_pool_connections=64,
            s3={"addressing_style": "path"} if endpoint else None,
        ),
    )

    refuse_cut_heads(s3)

    def note_time(parsed: Mapping[str, Any], **_: object) -> None:
        with suppress(StoreUnusable):  # the requests that need the time raise it
            _CLOCKS[options] = (_date_ms(parsed), monotonic_ms())

    s3.meta.events.register("after-call.s3", note_time)
    count_requests_of(s3.meta.events)
    return s3


_CLOCKS: dict[Options, tuple[int, int]] = {}
"""The time of a store's last answer, and the monotonic clock of this process at that moment, ms."""


def recent_time_ms(options: Options) -> int | None:
    """The store's clock, UTC ms, if it has answered within the last minute."""
    at_ms, seen_ms = _CLOCKS.get(options, (0, -_CLOCK_TRUST_MS))
    age_ms = monotonic_ms() - seen_ms
    return at_ms + age_ms if age_ms < _CLOCK_TRUST_MS else None


def time_ms(options: Options, bucket: str) -> int:
    """The store's time, UTC ms, by a request that writes nothing."""
    return _date_ms(client(options).head_bucket(Bucket=bucket))


def _date_ms(answer: Mapping[str, Any]) -> int:
    """The store's time of an answer, UTC ms, by its header Date (RFC 9110, 6.6.1). Raises StoreUnusable where it has none: by
    another clock a claim would end too early."""
    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    if not date:
        raise StoreUnusable(f"an answer of the store has no header Date. {_SAY_TIME}")
    try:
        at = parsedate_to_datetime(date)
    except (ValueError, TypeError, OverflowError):
        raise StoreUnusable(
            f"an answer of the store has the header Date {date!r}, which is no time. {_SAY_TIME}"
        ) from None
    return int(at.replace(tzinfo=at.tzinfo or UTC).timestamp() * 1000)


@functools.lru_cache(maxsize=8)
def arrow_filesystem(options: Options) -> pyarrow.fs.S3FileSystem:
    known = dict(options)
    scheme, _, host = known.get("AWS_ENDPOINT_URL", "").rpartition("://")
    return pyarrow.fs.S3FileSystem(
        access_key=known.get("AWS_ACCESS_KEY_ID"),
        secret_key=known.get("AWS_SECRET_ACCESS_KEY"),
        session_token=known.get("AWS_SESSION_TOKEN"),
        region=known["AWS_REGION"],
        scheme=scheme or "https",
        endpoint_override=host or None,
    )


def _may_pass(state: tenacity.RetryCallState) -> bool:
    """Whether the same request may be answered later. The address of a store that has not answered this process yet may be
    wrong, so only a body that broke off, or is not the one that was sent, is requested again there; the client itself has
    tried the rest."""
    error = state.outcome.exception() if state.outcome else None
    if isinstance(error, IncompleteReadError | ResponseStreamingError | ReadTimeoutError | FlexibleChecksumError):
        return True
    if state.args[0] not in _CLOCKS:
        return False
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        return status >= 500 or status in (_TIMED_OUT, _TOO_MANY) or code_of(error) in _BUSY
    return isinstance(error, HTTPClientError)


RETRIES = tenacity.Retrying(
    retry=_may_pass,
    wait=tenacity.wait_random_exponential(multiplier=0.1, max=5),
    stop=tenacity.stop_after_delay(60) | tenacity.stop_after_attempt(20),
    reraise=True,
)
"""How often and for how long a request is tried that does the same however often it is made. The client's own tries are few,
share a quota of all its threads, and end where the body of an answer begins."""


@tenacity.retry(
    retry=tenacity.retry_if_exception(lambda error: code_of(error) in _TRY_AGAIN),
    wait=tenacity.wait_random_exponential(multiplier=0.05, max=2),
    stop=tenacity.stop_after_attempt(8),
    reraise=True,
)
def put_if_absent(options: Options, bucket: str, key: str, content: bytes, creator: str) -> None:
    """Raises ClientError with a code of LOST_RACE when the object is there, also by an earlier try of this call."""
    client(options).put_object(Bucket=bucket, Key=key, Body=content, IfNoneMatch="*", Metadata={_CREATED_BY: creator})


@RETRIES.wraps
def put(options: Options, bucket: str, key: str, content: bytes) -> None:
    """Write the object, also over an older one."""
    client(options).put_object(Bucket=bucket, Key=key, Body=content)


def put_file(options: Options, bucket: str, key: str, content: pa.Buffer) -> None:
    """The object appears with its whole content or not at all."""
    if content.size < _PART_BYTES:
        client(options).put_object(Bucket=bucket, Key=key, Body=content.to_pybytes())
        return
    from boto3.s3.transfer import TransferConfig

    parts = TransferConfig(multipart_threshold=_PART_BYTES, multipart_chunksize=_PART_BYTES)
    client(options).upload_fileobj(pa.BufferReader(content), bucket, key, Config=parts)


def create(options: Options, bucket: str, key: str, content: bytes) -> bool:
    """Create the object unless it is there; False when another caller has. Raises CommitOutcomeUnknown when the store did not
    answer, so that it is not known whether the object was created, and StoreUnusable when its answers contradict each other."""
    creator_id = random_name()
    for _ in range(_CREATES):
        try:
            put_if_absent(options, bucket, key, content, creator_id)
            return True
        except ClientError as error:
            if code_of(error) not in LOST_RACE:
                raise
            # The first try may have succeeded without an answer: then the object there is this caller's.
            if (creator := creator_of(options, bucket, key)) is not None:
                return creator == creator_id
            # Else it was deleted since, or the store is wrong.
        except NoCredentialsError:
            raise
        except BotoCoreError as error:
            try:
                creator = creator_of(options, bucket, key)
            except (BotoCoreError, ClientError):
                creator = None
            if creator is None:  # not there yet; an unanswered try may still arrive
                reason = without_secrets(options, str(error))
                raise CommitOutcomeUnknown(
                    f"s3://{bucket}/{key}: the store did not answer ({reason}), so it is not known whether the "
                    "object was created. Check whether it is there before doing anything else."
                ) from None
            return creator == creator_id
    raise StoreUnusable(
        f"S3 answered {_CREATES} times that s3://{bucket}/{key} is there, and then that it is not. Run the same again; if that "
        "does not help, the store, or a proxy in front of it, does not do what its answers say: use another one."
    )


def creator_of(options: Options, bucket: str, key: str) -> str | None:
    """Who created the object (put_if_absent's ``creator``); None when it is not there."""
    try:
        metadata = head(options, bucket, key)["Metadata"]
    except ClientError as error:
        if code_of(error) in MISSING:
            return None
        raise
    return str(metadata.get(_CREATED_BY, ""))


@RETRIES.wraps
def get(options: Options, bucket: str, key: str, begin: int, end: int | None) -> bytes:
    """Bytes ``[begin, end)``; fewer when the object ends before."""
    try:
        if begin == 0 and end is None:
            answer = _get_object(options, Bucket=bucket, Key=key)
        else:
            last = "" if end is None else end - 1
            answer = _get_object(options, Bucket=bucket, Key=key, Range=f"bytes={begin}-{last}")
        content = answer["Body"].read()
    except ClientError as error:
        if code_of(error) in _PAST_THE_END:
            return b""
        raise
    if (size := _size_of(answer)) is not None:
        _check_length(content, (size if end is None else min(end, size)) - begin)
    return content


def _get_object(options: Options, **request: Any) -> GetObjectOutputTypeDef:
    """botocore reads the body of an error's answer where it does not translate the errors of the connection."""
    try:
        return client(options).get_object(**request)
    except urllib3.exceptions.HTTPError as error:
        raise ResponseStreamingError(error=error) from error


def _size_of(answer: GetObjectOutputTypeDef) -> int | None:
    """The size of the object in bytes, by the answer to a request for a range; None when the answer does not say it."""
    size = answer.get("ContentRange", "").rpartition("/")[2]
    return int(size) if size.isdecimal() else None


def _check_length(content: bytes, length: int) -> None:
    """Raise IncompleteReadError for a range that the network has made shorter: a range has no checksum, and the length that
    the answer says may be that of what is left."""
    if len(content) != length:
        raise IncompleteReadError(actual_bytes=len(content), expected_bytes=length)


@RETRIES.wraps
def head(options: Options, bucket: str, key: str) -> HeadObjectOutputTypeDef:
    """Size, times and metadata of the object."""
    return client(options).head_object(Bucket=bucket, Key=key)


@RETRIES.wraps
def tail(options: Options, bucket: str, key: str, most: int) -> tuple[bytes, int]:
    """The last ``most`` bytes, or all where there are fewer, and the size of the object in bytes."""
    try:
        answer = _get_object(options, Bucket=bucket, Key=key, Range=f"bytes=-{most}")
        content = answer["Body"].read()
    except ClientError as error:
        if code_of(error) in _PAST_THE_END:  # it is empty
            return b"", 0
        raise
    size = _size_of(answer)
    if size is None:
        return content, len(content)
    _check_length(content, min(most, size))
    return content, size


def look_at(options: Options, bucket: str, key: str) -> tuple[bytes | None, int]:
    """The content, None when the object is absent, and the store's time of the answer, UTC ms."""
    try:
        return _get_dated(options, bucket, key)
    except ClientError as error:
        if code_of(error) in MISSING:
            return None, _date_ms(error.response)
        raise


@RETRIES.wraps
def _get_dated(options: Options, bucket: str, key: str) -> tuple[bytes, int]:
    answer = _get_object(options, Bucket=bucket, Key=key)
    return answer["Body"].read(), _date_ms(answer)


def put_once(options: Options, bucket: str, key: str, content: bytes) -> tuple[PutAnswer, int, Exception | None]:
    """One request, which is not repeated: only so an answer is an answer to it. The store's time of the answer, UTC ms. An
    answer without a time is none."""
    try:
        return _put_once(options, bucket, key, content)
    except StoreUnusable as error:
        return PutAnswer.SILENT, 0, error


def _put_once(options: Options, bucket: str, key: str, content: bytes) -> tuple[PutAnswer, int, Exception | None]:
    try:
        answer = client(options, 1).put_object(Bucket=bucket, Key=key, Body=content, IfNoneMatch="*")
        return PutAnswer.CREATED, _date_ms(answer), None
    except ClientError as error:
        if code_of(error) in LOST_RACE:
            return PutAnswer.TAKEN, _date_ms(error.response), None
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
        refused = 400 <= status < 500 and status != _TIMED_OUT
        return PutAnswer.REFUSED if refused else PutAnswer.SILENT, 0, error
    except NoCredentialsError as error:
        return PutAnswer.REFUSED, 0, error
    except BotoCoreError as error:
        return PutAnswer.SILENT, 0, error


@RETRIES.wraps
def names_in(options: Options, bucket: str, folder: str, after: str) -> tuple[list[str], int]:
    """The names directly in ``folder`` (which ends with ``/``) after ``after``, sorted, and the store's time, UTC ms."""
    pages = client(options).get_paginator("list_objects_v2")
    names, at_ms = [], 0
    for page in pages.paginate(Bucket=bucket, Prefix=folder, Delimiter="/", StartAfter=folder + after):
        at_ms = at_ms or _date_ms(page)
        names += [item["Key"].removeprefix(folder) for item in page.get("Contents", ())]
    return names, at_ms


@RETRIES.wraps
def names(options: Options, bucket: str, folder: str, most: int) -> list[str]:
    """Up to ``most`` keys and folders directly below ``folder`` (which ends with ``/``, or is "")."""
    page = client(options).list_objects_v2(Bucket=bucket, Prefix=folder, Delimiter="/", MaxKeys=most)
    folders = [item["Prefix"] for item in page.get("CommonPrefixes", ())]
    return folders + [item["Key"] for item in page.get("Contents", ())]


@RETRIES.wraps
def list_dated(options: Options, bucket: str, prefix: str) -> list[tuple[str, int, int]]:
    """The objects whose keys begin like this: key, size in bytes, and when it was written, UTC ms."""
    pages = client(options).get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return [
        (entry["Key"], entry["Size"], int(entry["LastModified"].timestamp() * 1000))
        for page in pages
        for entry in page.get("Contents", ())
    ]


@RETRIES.wraps
def delete_all(options: Options, bucket: str, keys: Sequence[str]) -> None:
    """Raises ClientError for the first object that the store did not delete."""
    for start in range(0, len(keys), _KEYS_OF_A_DELETE):
        some: list[ObjectIdentifierTypeDef] = [{"Key": key} for key in keys[start : start + _KEYS_OF_A_DELETE]]
        answer = client(options).delete_objects(Bucket=bucket, Delete={"Objects": some, "Quiet": True})
        for error in answer.get("Errors", ()):
            raise ClientError(
                {"Error": {"Code": error.get("Code", ""), "Message": error.get("Message", "")}}, "DeleteObjects"
            )


def code_of(error: BaseException) -> str:
    """S3's error code; empty when the error is not an answer of S3."""
    return str(error.response.get("Error", {}).get("Code", "")) if isinstance(error, ClientError) else ""


def in_words(error: ClientError) -> str:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode")
    message = error.response.get("Error", {}).get("Message", "no message")
    remedy = _REMEDIES.get(code_of(error))
    answer = f"S3 answered {error.operation_name} with {status} {code_of(error)} ({message})"
    return f"{answer}: {remedy}" if remedy else answer


def with_remedy(text: str) -> str:
    """An error of Arrow's own client, which may lack S3's words: it cuts an answer that is longer than what it asked for."""
    match = _ARROWS_CODE.search(text)
    code = match[1].replace("_", "").lower() if match else ""
    remedy = next((remedy for name, remedy in _REMEDIES.items() if name.lower() == code), None)
    return f"{text.rstrip(' :')}: {remedy}" if remedy else text


def without_secrets(options: Options, text: str) -> str:
    """The text of an error, without the secrets of the settings."""
    return cleaned(text, secret_values(dict(options)))
