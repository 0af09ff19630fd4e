"""A real S3 server on loopback: S3Proxy, with files behind it and keys made up for the run."""

from __future__ import annotations

import secrets
import socket
import subprocess
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import boto3
from botocore.config import Config

from spark_jobs.jars import present_jars
from spark_jobs.java import find_java
from spark_jobs.progress import signs_of, wait_for_progress


@dataclass(frozen=True, slots=True)
class S3Server:
    """``env`` is what a user would export to reach it."""

    endpoint: str
    env: Mapping[str, str]
    process_id: int
    data: Path
    """The folder that has a folder for each bucket."""

    def new_bucket(self) -> str:
        name = f"bucket-{uuid.uuid4().hex[:12]}"
        boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=self.env["AWS_REGION"],
            aws_access_key_id=self.env["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=self.env["AWS_SECRET_ACCESS_KEY"],
            config=Config(s3={"addressing_style": "path"}),
        ).create_bucket(Bucket=name)
        return name


@contextmanager
def s3_server_in(folder: Path) -> Iterator[S3Server]:
    """The server, with its files in an empty ``folder``. Raises MachineNotReady when Java or its jar is missing."""
    jar = present_jars("test")[0]
    (folder / "data").mkdir()
    port = _free_port()
    endpoint = f"http://127.0.0.1:{port}"
    key_id, secret = f"test{secrets.token_hex(6)}", secrets.token_hex(20)
    settings = folder / "s3proxy.conf"
    settings.write_text(
        f"s3proxy.endpoint={endpoint}\n"
        "s3proxy.authorization=aws-v2-or-v4\n"
        f"s3proxy.identity={key_id}\n"
        f"s3proxy.credential={secret}\n"
        "jclouds.provider=filesystem\n"
        "jclouds.identity=unused\n"
        "jclouds.credential=unused\n"
        f"jclouds.filesystem.basedir={folder / 'data'}\n"
    )
    log_file = folder / "log"
    with log_file.open("wb") as log:
        process = subprocess.Popen(
            [
                find_java() / "bin" / "java",
                "-Xmx512m",
                f"-Djava.io.tmpdir={folder}",
                *("-jar", jar),
                *("--properties", settings),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
    try:
        _wait_until_it_answers(process, port, log_file)
        env = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ACCESS_KEY_ID": key_id,
            "AWS_SECRET_ACCESS_KEY": secret,
            "AWS_REGION": "us-east-1",
        }
        yield S3Server(endpoint, env, process.pid, folder / "data")
    finally:
        process.kill()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait_until_it_answers(process: subprocess.Popen[bytes], port: int, log_file: Path) -> None:
    def answers() -> bool:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            if process.poll() is None:
                return False
            shown = log_file.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"the S3 server has ended. Its log ends:\n{shown}") from None
        return True

    wait_for_progress(answers, lambda: signs_of([process.pid], [log_file]), "the S3 server is still starting", print)
