"""Offsets for the derived tables and for brokers."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from rmq_store.admin.sentences import dispatch_sentence, export_sentence
from rmq_store.airflow.operators.base import RmqOperator
from rmq_store.airflow.task import Answer
from rmq_store.errors import WrongUse, clause
from rmq_store.utils.host import Host

if TYPE_CHECKING:
    from airflow.sdk import Context

    from rmq_store.lake.broker.export_folder import MergedExport


class RmqDispatchOperator(RmqOperator):
    """Bring the tables ``consumequeue`` and ``offsets`` up to the newest commit."""

    def act(self, context: Context) -> Answer:
        """Return how many commits of each shard were dispatched, the sum over its derived tables."""
        from rmq_store.lake.commit.dispatch import dispatch

        host = Host()
        answer = self.logged(
            {shard.name: dispatch(shard, host) for shard in self.hook.deployment.open_store().shards()}
        )
        self.note(context, dispatch_sentence(answer))
        return answer


class RmqExportOffsetsOperator(RmqOperator):
    """
    Merge ``consumerOffset.json`` and ``delayOffset.json`` of every imported broker into the existing files.

    The files are below the export folder of the connection, else of ``RMQ_EXPORT_FOLDER``. Those that change are written.
    """

    def act(self, context: Context) -> list[Answer]:
        """Return an answer per broker."""
        from rmq_store.commit.positions import diverged_id, split_id
        from rmq_store.lake.broker.export import export_offsets
        from rmq_store.lake.broker.export_folder import merge_export

        deployment = self.hook.deployment
        answers = []
        for shard in deployment.open_store().shards():
            for app_id, _ in shard.positions().prefixed("import/"):
                broker_name = split_id(app_id)[1]
                if shard.positions().get(diverged_id(broker_name)) is not None:
                    continue  # its groups' offsets are those of the name that continues its log
                try:
                    merged = merge_export(
                        deployment.export_folder,
                        shard.name,
                        broker_name,
                        functools.partial(export_offsets, shard, broker_name),
                        root_of=deployment.place,
                    )
                except WrongUse as error:
                    raise WrongUse(
                        f"{clause(error)}. Set RMQ_EXPORT_FOLDER to a folder that the user of Airflow's processes can write to"
                    ) from error
                answers.append(self.logged(_answer(broker_name, merged)))
        self.note(context, export_sentence(answers))
        return answers


def _answer(broker_name: str, merged: MergedExport) -> Answer:
    export = merged.export
    return {
        "broker_name": broker_name,
        "file": merged.file,
        "changed": merged.changed,
        "lowered": merged.lowered,
        "notes": list(merged.notes),
        "groups": export.groups,
        "waiting_retries": dict(export.waiting_retries),
        "waiting_messages": dict(export.waiting_messages),
        "waiting_deleted": dict(export.waiting_deleted),
        "waiting_levels": export.waiting_levels,
        "given_again": dict(export.given_again),
        "left_out": {key: list(ids) for key, ids in export.left_out.items()},
        "clients": list(export.clients),
    }
