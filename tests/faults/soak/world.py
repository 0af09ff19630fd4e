"""The store of a round, on a local folder or on a real S3 server behind a proxy, and what is seen outside of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import boto3
from botocore.config import Config

from benchmarks.s3_proxy import S3Proxy
from benchmarks.s3_server import s3_server_in
from tests.faults.soak.broker import GrowingBroker

SETTINGS = Path(__file__).parent / "consumers.toml"
_AGE_S = 3 * 24 * 3600


@dataclass(slots=True)
class World:
    """Folders and roots of a round."""

    folder: Path
    root: str
    """Of the store: a folder or ``s3://bucket/prefix``."""
    backup: str
    broker: GrowingBroker
    files: Path
    """Where the files of the store are, also those in S3: they become old, and one of a derived table is deleted."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What a process needs to reach the root."""

    @property
    def history(self) -> Path:
        return self.folder / "history"

    def local_copy(self) -> Path:
        """The store as a folder. A store in S3 is copied; of what was copied before, only what is new."""
        if not self.root.startswith("s3://"):
            return Path(self.root)
        folder = self.folder / "copy"
        _mirror(self.root, self.environment, folder)
        return folder

    def make_old(self) -> None:
        """Everything in the store was written three days ago: so a vacuum, and the clean-up of the log, delete what they may.
        Only while nothing runs."""
        for path in self.files.rglob("*"):
            if path.is_file():
                stat = path.stat()
                os.utime(path, (stat.st_atime - _AGE_S, stat.st_mtime - _AGE_S))


@contextmanager
def worlds(folder: Path, store: str) -> Iterator[Iterator[World]]:
    """Endless new worlds. ``store``: ``local`` or ``s3``, for which a server runs inside ``with``."""
    with ExitStack() as stack:
        if store == "local":
            yield (_world(folder / f"round-{number}") for number in _numbers())
            return
        server_folder = folder / "s3"
        server_folder.mkdir()
        server = stack.enter_context(s3_server_in(server_folder))
        proxy = stack.enter_context(S3Proxy(server.endpoint, delay_s=0))
        environment = {**server.env, "AWS_ENDPOINT_URL": proxy.endpoint}

        def in_s3(number: int) -> World:
            bucket = server.new_bucket()
            proxy.requests.clear()
            world = _world(folder / f"round-{number}")
            world.root, world.backup = f"s3://{bucket}/store", f"s3://{bucket}/backup"
            world.environment, world.files = environment, server_folder / "data" / bucket / "store"
            return world

        yield map(in_s3, _numbers())


def _numbers() -> Iterator[int]:
    number = 0
    while True:
        number += 1
        yield number


def _world(folder: Path) -> World:
    for name in ("history/calls", "history/sent", "history/written", "runs"):
        (folder / name).mkdir(parents=True)
    broker = GrowingBroker(folder / "broker", folder / "history" / "written" / "broker.jsonl")
    return World(folder, str(folder / "store"), str(folder / "backup"), broker, folder / "store")


def _mirror(root: str, environment: Mapping[str, str], folder: Path) -> None:
    """Make the folder a copy of the root. A name of a store has one content for ever, except for hints of the newest
    checkpoint, which the checker does not read."""
    bucket, _, prefix = root.removeprefix("s3://").partition("/")
    client = boto3.client(
        "s3",
        endpoint_url=environment["AWS_ENDPOINT_URL"],
        region_name=environment["AWS_REGION"],
        aws_access_key_id=environment["AWS_ACCESS_KEY_ID"],
        aws_secret_access_key=environment["AWS_SECRET_ACCESS_KEY"],
        config=Config(s3={"addressing_style": "path"}),
    )
    present = set()
    for page in client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/"):
        for item in page.get("Contents", ()):
            path = folder / item["Key"][len(prefix) + 1 :]
            present.add(path)
            if not path.exists() or path.stat().st_size != item["Size"]:
                path.parent.mkdir(parents=True, exist_ok=True)
                client.download_file(bucket, item["Key"], str(path))
    for path in folder.rglob("*"):
        if path.is_file() and path not in present:
            path.unlink()
