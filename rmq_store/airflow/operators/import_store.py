"""Import a broker's files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rmq_store.admin.dag_params import ImportParams
from rmq_store.admin.sentences import import_sentence
from rmq_store.airflow.arguments import check_constants, check_switches
from rmq_store.airflow.lineage import Lineage, place_of
from rmq_store.airflow.operators.base import RmqOperator
from rmq_store.airflow.task import Answer
from rmq_store.utils.host import Host
from rmq_store.utils.progress import by_tenths

if TYPE_CHECKING:
    from airflow.sdk import Context

    from rmq_store.lake.broker.import_request import ImportRequest


class RmqImportStoreOperator(RmqOperator):
    """
    Import the new messages of a broker's store directory, in parts, each all or nothing.

    The source must be inside one of the import roots of the connection, else of ``RMQ_IMPORT_ROOTS``.

    :param source: The store directory: a folder, or ``s3://bucket/prefix``. (templated)
    :param broker_name: The broker's name (brokerName). (templated)
    :param shard: The shard to import into. By default the broker's name.
    :param salvage: Skip damaged records, and record what was skipped.
    :param max_body_bytes: The largest body, in bytes after decompression.
    :param max_config_bytes: The largest of the broker's config files, in bytes.
    :param max_queues: The most queues of a topic.
    :param engine: ``auto``, ``local`` or ``spark``: where the files are read. By default as the connection says, else ``auto``.
    :param check_only: Only check the arguments, and that the source may be read; nothing of it is opened.
    """

    template_fields: Sequence[str] = ("source", "broker_name")

    def __init__(
        self,
        *,
        source: str | None = None,
        broker_name: str | None = None,
        shard: str | None = None,
        salvage: bool | None = None,
        max_body_bytes: int | None = None,
        max_config_bytes: int | None = None,
        max_queues: int | None = None,
        engine: str | None = None,
        check_only: bool = False,
        **kwargs: Any,
    ) -> None:
        check_switches(salvage=salvage, check_only=check_only)
        check_constants(shard=shard, engine=engine)
        check_constants(max_body_bytes=max_body_bytes, max_config_bytes=max_config_bytes, max_queues=max_queues)
        super().__init__(**kwargs)
        self.source = source
        self.broker_name = broker_name
        self.shard = shard
        self.salvage = salvage
        self.limits = {"max_body_bytes": max_body_bytes, "max_config_bytes": max_config_bytes, "max_queues": max_queues}
        self.engine = engine
        self.check_only = check_only

    def act(self, context: Context) -> Answer | str:
        """Return the report, or the resolved source after a check."""
        from rmq_store.lake.broker.import_request import ImportRequest
        from rmq_store.lake.broker.import_store import check_request

        params = ImportParams.of(
            self.values(
                context,
                source=self.source,
                broker_name=self.broker_name,
                shard=self.shard,
                salvage=self.salvage,
                engine=self.engine,
                **self.limits,
            )
        )
        run = self.run_facts(context)
        request = ImportRequest(
            broker_name=params.broker_name,
            shard_name=params.shard,
            request_id=run.request_id,
            actor=run.actor,
            salvage=params.salvage,
            max_body_bytes=params.max_body_bytes,
            max_config_bytes=params.max_config_bytes,
            max_queues=params.max_queues,
        )
        check_request(request)
        source = self.hook.deployment.allowed_source(params.source)
        return source if self.check_only else self._import(context, request, source, params.engine)

    def _import(self, context: Context, request: ImportRequest, source: str, engine: str | None) -> Answer:
        from rmq_store.lake.broker.import_size import bytes_to_read
        from rmq_store.lake.broker.import_store import import_store

        deployment = self.hook.deployment
        store, files = deployment.open_store(), deployment.place(source)
        table = place_of(f"{store.root.location}/{request.shard_name}/commitlog")
        self.lineage = Lineage((place_of(files.location),), (table,))
        with deployment.engines(engine) as engines:
            report = import_store(
                store,
                files,
                request,
                Host(),
                engines.for_import(bytes_to_read(store, files, request)),
                progress=by_tenths(lambda read, total: self.log_line(f"{read:,} of {total:,} bytes")),
            )
        answer = self.logged(
            asdict(report)
            | {"salvaged": len(report.salvaged), "queue_gaps": len(report.queue_gaps)}
            | {"notes": list(report.notes), "warnings": list(report.warnings)}
        )
        self.note(context, import_sentence(answer))
        return answer
