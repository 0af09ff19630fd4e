"""What Airflow reads of this package in each of its processes (entry point ``apache_airflow_provider``)."""

from __future__ import annotations

from typing import Any

_NAME = "RocketMQ lakehouse"
_PACKAGE = "rmq_store.airflow"
_OPERATORS = (
    "approve",
    "consume",
    "deliver",
    "export",
    "import_store",
    "maintain",
    "redrive",
    "replay",
    "reset",
    "undo",
)
_LINKS = ("RmqGroupLink", "RmqDeadLettersLink", "RmqWindowLink", "RmqNewDeadLettersLink")


def get_provider_info() -> dict[str, Any]:
    """The provider's description, in the form of Airflow's ``provider_info.schema.json``."""
    text = {"type": ["string", "null"]}
    return {
        "package-name": "rocketmq-lakehouse",
        "name": _NAME,
        "description": "Keep, replay and reprocess Apache RocketMQ messages in a lakehouse.",
        "integrations": [{"integration-name": _NAME, "external-doc-url": "https://rocketmq.apache.org/"}],
        "operators": [_modules("operators", *_OPERATORS)],
        "hooks": [_modules("hooks", "rmq")],
        "sensors": [_modules("sensors", "lag")],
        "triggers": [_modules("triggers", "due", "lag", "retries")],
        "extra-links": [f"{_PACKAGE}.links.console.{name}" for name in _LINKS],
        "notifications": [f"{_PACKAGE}.notifications.rmq.RmqNotifier"],
        "connection-types": [
            {
                "connection-type": "rmq",
                "hook-class-name": f"{_PACKAGE}.hooks.rmq.RmqHook",
                "hook-name": _NAME,
                "conn-fields": {
                    "root": {
                        "label": "Root",
                        "schema": text,
                        "description": "The store: a folder, or s3://bucket/prefix.",
                    },
                    "settings": {
                        "label": "Settings",
                        "schema": text,
                        "description": "The file with the consumer groups.",
                    },
                    "import_roots": {
                        "label": "Import roots",
                        "schema": text,
                        "description": "Folders and s3:// prefixes that may be imported from, separated by commas.",
                    },
                    "export_folder": {
                        "label": "Export folder",
                        "schema": text,
                        "description": "Where offsets are exported to.",
                    },
                    "engine": {
                        "label": "Engine",
                        "schema": {**text, "enum": ["auto", "local", "spark", None]},
                        "description": "Where windows and imports run. auto: in the task's process if there is little to do. "
                        "Empty: as each group says.",
                    },
                    "spark_remote": {
                        "label": "Spark Connect server",
                        "schema": text,
                        "description": "sc://host:port, instead of a master.",
                    },
                    "spark_master": {
                        "label": "Spark master",
                        "schema": text,
                        "description": "local[2], spark://host:port, k8s://..., yarn.",
                    },
                    "spark_submit": {
                        "label": "spark-submit",
                        "schema": text,
                        "description": "spark-submit with its options, such as 'spark-submit --queue etl': it starts Spark.",
                    },
                    "endpoint_url": {"label": "S3 endpoint", "schema": text, "description": "Empty: that of AWS."},
                    "region_name": {"label": "S3 region", "schema": text},
                    "aws_session_token": {"label": "S3 session token", "schema": {**text, "format": "password"}},
                },
                "ui-field-behaviour": {
                    "hidden-fields": ["host", "port", "schema"],
                    "relabeling": {"login": "S3 access key id", "password": "S3 secret access key"},
                    "placeholders": {},
                },
            }
        ],
    }


def _modules(kind: str, *names: str) -> dict[str, Any]:
    return {"integration-name": _NAME, "python-modules": [f"{_PACKAGE}.{kind}.{name}" for name in names]}
