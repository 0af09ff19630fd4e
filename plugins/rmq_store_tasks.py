"""The tasks that serve a whole store: import, deliver what is due, dispatch, export offsets, maintain.

This module translates and makes no decisions. Heavy imports are inside the functions, so that parsing a DAG is fast.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import asdict

from rmq_deployment import Deployment
from rmq_task import Answer, current_run, log_line, logged, nothing_to_do, translated

from rmq_store.admin.dag_params import ImportParams
from rmq_store.errors import WrongUse
from rmq_store.maintain.request import MaintainRequest, Step
from rmq_store.utils.host import Host

log = logging.getLogger(__name__)


@translated
def check_import() -> str:
    """Check the parameters, and that the source may be read; nothing of it is opened. Returns the source."""
    _, params = current_run()
    return Deployment.from_env().allowed_source(ImportParams.of(params).source)


@translated
def import_files() -> Answer:
    """Import what is new in the broker's files into the commit log."""
    from rmq_store.lake.broker.import_request import ImportRequest
    from rmq_store.lake.broker.import_store import import_store
    from rmq_store.lake.table.object_store import Root

    run, params = current_run()
    import_params, deployment = ImportParams.of(params), Deployment.from_env()
    source = Root.parse(deployment.allowed_source(import_params.source))
    request = ImportRequest(
        broker_name=import_params.broker_name,
        shard_name=import_params.shard,
        request_id=run.request_id,
        actor=run.actor,
        salvage=import_params.salvage,
        max_body_bytes=import_params.max_body_bytes,
        max_config_bytes=import_params.max_config_bytes,
        max_queues=import_params.max_queues,
    )
    with deployment.engines(import_params.engine) as engines:
        report = import_store(
            deployment.open_store(),
            source,
            request,
            Host(),
            engines.for_import(),
            progress=lambda read, total: log_line(f"{read:,} of {total:,} bytes"),
        )
    return logged(
        asdict(report)
        | {"salvaged": len(report.salvaged), "queue_gaps": len(report.queue_gaps)}
        | {"notes": list(report.notes), "warnings": list(report.warnings)}
    )


@translated
def deliver_due() -> list[Answer]:
    """Deliver everything that is due, in all delay levels and shards; ``next_due_ms`` (UTC) is the next due time."""
    from rmq_store.lake.window.deliver import deliver
    from rmq_store.window.deliver import deliver_all

    run, _ = current_run()
    store, host = Deployment.from_env().open_store(), Host()
    answers = []
    for shard in store.shards():
        reports = deliver_all(run.request_id, functools.partial(deliver, store, shard, actor=run.actor, host=host))
        answer = {
            "shard": shard.name,
            "delivered": sum(report.delivered for report in reports),
            "next_due_ms": reports[-1].next_due_ms,
            "warnings": [warning for report in reports for warning in report.warnings],
        }
        answers.append(logged(answer))
    if not any(answer["delivered"] for answer in answers):
        nothing_to_do("nothing is due")
    return answers


@translated
def dispatch_all() -> Answer:
    """Bring the derived tables up to the newest commit."""
    from rmq_store.lake.commit.dispatch import dispatch

    current_run()
    host = Host()
    return logged({shard.name: dispatch(shard, host) for shard in Deployment.from_env().open_store().shards()})


@translated
def export_all() -> list[Answer]:
    """Merge ``consumerOffset.json`` and ``delayOffset.json`` of every imported broker into the existing files, and
    write those that change."""
    from rmq_store.commit.positions import diverged_id, split_id
    from rmq_store.lake.broker.export import export_offsets
    from rmq_store.lake.broker.export_folder import merge_export

    deployment = Deployment.from_env()
    answers = []
    for shard in deployment.open_store().shards():
        for app_id, _ in shard.positions().prefixed("import/"):
            broker_name = split_id(app_id)[1]
            if shard.positions().get(diverged_id(broker_name)) is not None:
                continue  # its groups' offsets are those of the name that continues its log
            export = export_offsets(shard, broker_name)
            try:
                merged = merge_export(deployment.export_folder, shard.name, broker_name, export)
            except WrongUse as error:
                raise WrongUse(
                    f"{error}. Set RMQ_EXPORT_FOLDER to a folder that the user of Airflow's processes can write to"
                ) from error
            answers.append(
                logged(
                    asdict(merged)
                    | {
                        "broker_name": broker_name,
                        "notes": list(merged.notes),
                        "groups": export.groups,
                        "waiting_retries": dict(export.waiting_retries),
                        "waiting_messages": dict(export.waiting_messages),
                        "waiting_deleted": dict(export.waiting_deleted),
                        "waiting_levels": export.waiting_levels,
                    }
                )
            )
    return answers


@translated
def maintain_all(step: Step) -> list[Answer]:
    """One step of the maintenance of every shard: what was done to each table."""
    from rmq_store.lake.maintain.maintain import maintain

    run, _ = current_run()
    host, rules = Host(), Deployment.from_env().retention() if step is Step.RETENTION else ()
    request = MaintainRequest(request_id=run.request_id, actor=run.actor, steps=frozenset({step}), rules=rules)
    return [
        logged(report.answer())
        for shard in Deployment.from_env().open_store().shards()
        for report in maintain(shard, request, host)
    ]
