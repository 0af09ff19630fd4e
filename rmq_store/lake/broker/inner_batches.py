"""Rows of records that hold several messages -> a row for each message, by the rule of ``log/inner_batch.py``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from rmq_store.errors import BadData
from rmq_store.lake.broker.records import SCHEMA
from rmq_store.lake.broker.salvage import Skipped
from rmq_store.log.consume_queue import entry_tags_code
from rmq_store.log.inner_batch import is_inner_batch, unwrap
from rmq_store.message.message_const import MessageConst
from rmq_store.message.sys_flag import MessageSysFlag, body_crc

_FLAGS = MessageSysFlag.INNER_BATCH_FLAG | MessageSysFlag.NEED_UNWRAP_FLAG


def with_inner_messages(batch: pa.RecordBatch, delay_levels: Mapping[int, int]) -> tuple[pa.RecordBatch, list[Skipped]]:
    """The batch with a row for each message that a consumer's client would see; those of inner batches are the last ones. And
    the records that cannot be taken apart, in log order: the batch has no row of them.

    They have the place, the size and the times of their record, and no offset message id: a client gives them none. Their CRC
    is that of their own body; the broker's is of the whole record, and was checked before.
    """
    candidates = batch.column("sys_flag").to_numpy() & _FLAGS != 0
    # The names of a slice are those of the larger batch, too.
    if pc.any(pc.equal(batch.column("properties").keys, MessageConst.INNER_NUM)).as_py():
        candidates |= np.array([MessageConst.INNER_NUM in dict(row) for row in batch.column("properties").to_pylist()])
    if not candidates.any():
        return batch, []
    refused: list[Skipped] = []
    rows: list[dict[str, Any]] = []
    for row in batch.filter(pa.array(candidates)).to_pylist():
        properties = dict(row["properties"])
        assert is_inner_batch(row["sys_flag"], properties)
        try:
            messages = unwrap(row["sys_flag"], properties, row["body"])
        except BadData as error:
            where = f"topic {row['topic']}, queue {row['queue_id']}, offset {row['queue_offset']}"
            begin = row["commit_log_offset"]
            reason = f"{where}: several messages in one record, but {error}"
            refused.append(Skipped(begin, begin + row["store_size"], reason))
            continue
        for number, message in enumerate(messages):
            own = message.properties
            rows.append(
                row
                | {
                    "queue_offset": row["queue_offset"] + number,
                    "flag": message.flag,
                    "body": message.body,
                    "stored_body_size": len(message.body),
                    "body_crc": body_crc(message.body),
                    "properties": list(own.items()),
                    "unique_key": own.get(MessageConst.UNIQ_CLIENT_MESSAGE_ID_KEYIDX),
                    "keys": own.get(MessageConst.KEYS),
                    "tags": own.get(MessageConst.TAGS),
                    "tags_code": entry_tags_code(row["topic"], own, row["store_timestamp"], delay_levels),
                    "offset_msg_id": None,
                }
            )
    inner = pa.RecordBatch.from_pylist(rows, SCHEMA)
    return pa.concat_batches([batch.filter(pa.array(~candidates)), inner]), refused
