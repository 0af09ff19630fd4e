"""Set-up of docker-compose.yaml: passwords, bucket, databases. Runs before Airflow's services; can be repeated."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

from rmq_store.settings.environment import Environment

EXISTS_ALREADY = {"BucketAlreadyOwnedByYou", "BucketAlreadyExists"}
S3_START_S = 300.0


def main() -> None:
    write_passwords(Path(os.environ["AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"]))
    create_bucket(Environment.read().root)
    subprocess.run(["airflow", "db", "migrate"], check=True)
    subprocess.run(["rmq", "init"], check=True)


def write_passwords(path: Path) -> None:
    """Write the file of users and passwords that Airflow's simple auth manager reads."""
    path.touch(mode=0o600)
    path.write_text(json.dumps({"admin": os.environ["AIRFLOW_ADMIN_PASSWORD"]}))


def create_bucket(root: str) -> None:
    """Create the bucket of the root, as soon as the S3 server answers."""
    if not root.startswith("s3://"):
        return
    bucket = root.removeprefix("s3://").partition("/")[0]
    client = boto3.client("s3", config=Config(s3={"addressing_style": "path"}, retries={"max_attempts": 1}))
    deadline = time.monotonic() + S3_START_S
    while True:
        try:
            client.create_bucket(Bucket=bucket)
            return
        except ClientError as error:
            if error.response["Error"]["Code"] in EXISTS_ALREADY:
                return
            raise
        except BotoCoreError:
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


if __name__ == "__main__":
    main()
