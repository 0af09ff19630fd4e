"""Modules of listeners that answer, raise and change anything."""

from __future__ import annotations

import random

from tests.faults.fuzz.changes import as_bytes, nasty_int, nasty_text

LISTENER = b"""
import pyarrow as pa

def answer(msgs, context):
    return ["RECONSUME_LATER" if m.queue_offset % 5 == 1 else "CONSUME_SUCCESS" for m in msgs]

def in_order(msgs, context):
    return "SUSPEND_CURRENT_QUEUE_A_MOMENT" if msgs[0].queue_offset % 7 == 3 else "SUCCESS"

def consume_batch(batch):
    return pa.array([offset % 4 > 0 for offset in batch.column("queue_offset").to_pylist()])

consume_batch.columns = ("queue_offset",)
"""
_CALLS = (
    *(
        '"CONSUME_SUCCESS"',
        '"RECONSUME_LATER"',
        "None",
        "True",
        "False",
        "0",
        "1",
        '""',
        '"SUCCESS"',
        '"ROLLBACK"',
        '"COMMIT"',
    ),
    *(
        'b"CONSUME_SUCCESS"',
        '"consume_success"',
        '"CONSUME_SUCCESS\\n"',
        '["CONSUME_SUCCESS"]',
        '["CONSUME_SUCCESS"] * len(msgs)',
    ),
    *(
        '["RECONSUME_LATER"] * (len(msgs) + 1)',
        "[]",
        "[None] * len(msgs)",
        "[True] * len(msgs)",
        "{}",
        "set()",
        "object()",
    ),
    *(
        '("CONSUME_SUCCESS" for m in msgs)',
        "iter([])",
        "range(len(msgs))",
        "msgs",
        "context",
        "answer",
        "Odd()",
        "[Odd()] * len(msgs)",
    ),
    *(
        "Text('CONSUME_SUCCESS')",
        "[Text('RECONSUME_LATER')] * len(msgs)",
        "'\\ud800'",
        "'x' * 100000",
        "[[]] * len(msgs)",
        "float('nan')",
    ),
    *(
        "exit()",
        "os._exit(0)",
        "sys.exit(0)",
        "recurse()",
        "context.ack_index",
        "type",
        "Ellipsis",
        "iter(Odd())",
        "Lies()",
    ),
)
_BATCHES = (
    *(
        "pa.array([True] * n)",
        "pa.array([False] * n)",
        "pa.array([None] * n, pa.bool_())",
        "pa.nulls(n)",
        "[True] * n",
        "True",
        "None",
    ),
    *(
        "pa.array([True] * (n + 1))",
        "pa.array([], pa.bool_())",
        "pa.array([1] * n)",
        "pa.array(['true'] * n)",
        "pa.scalar(True)",
    ),
    *(
        "pa.chunked_array([[True] * n])",
        "pa.chunked_array([], pa.bool_())",
        "np.ones(n, bool)",
        "np.ones((n, 1), bool)",
        "np.bool_(True)",
    ),
    *(
        "np.array([True] * n, object)",
        "pd.Series([True] * n)",
        "pd.Series([None] * n)",
        "pd.Series([True] * n, index=range(5, n + 5))",
    ),
    *(
        "batch",
        "batch.column(0)",
        "iter([True] * n)",
        "'CONSUME_SUCCESS'",
        "[None] * n",
        "np.ma.masked_all(n, bool)",
        "(True,) * n",
    ),
    *(
        "pa.array([True] * n).dictionary_encode()",
        "pd.array([True] * n, 'boolean')",
        "memoryview(b'1' * n)",
        "Odd()",
        "Lies()",
        "{}",
    ),
    *(
        "pa.RunEndEncodedArray.from_arrays([n], [True])",
        "pa.array([[True]] * n)",
        "np.array(True)",
        "pd.DataFrame({'a': [True] * n})",
    ),
)
_RAISED = (
    *(
        "ValueError('no')",
        "Odd()",
        "BadText()",
        "SystemExit(0)",
        "KeyboardInterrupt()",
        "GeneratorExit()",
        "StopIteration(1)",
        "BaseException()",
    ),
    *(
        "MemoryError()",
        "RecursionError()",
        "ExceptionGroup('g', [ValueError()])",
        "BaseExceptionGroup('g', [SystemExit()])",
        "Local('x')",
    ),
    *(
        "ConsumeFailed(0)",
        "ConsumeFailed(len(msgs))",
        "ConsumeFailed(-1)",
        "ConsumeFailed('x')",
        "ConsumeFailed(0, BadText())",
        "1",
    ),
    *(
        "UnicodeDecodeError('utf-8', b'x', 0, 1, '\\ud800')",
        "ValueError('\\ud800\\x1b]0;x\\x07' * 9999)",
        "asyncio.CancelledError()",
    ),
    *(
        "BrokenPipeError(32, 'x')",
        "OSError(28, 'No space left on device')",
        "TimeoutError()",
        "NotImplementedError",
        "StopAsyncIteration",
    ),
    *(
        "WrongUse('x')",
        "BadData('x')",
        "HeldByAnother('x')",
        "CommitOutcomeUnknown('x')",
        "Terminated2()",
        "pa.ArrowInvalid('x')",
    ),
)
_LINES = (
    *(
        "context.ack_index = {n}",
        "context.delay_level_when_next_consume = {n}",
        "context.auto_commit = {v}",
        "msgs.clear()",
    ),
    *(
        "context.suspend_current_queue_time_millis = {n}",
        "context.group = {v}",
        "msgs.append(None)",
        "del msgs[0]",
        "context.x = 1",
    ),
    *(
        "context.ack_index = {v}",
        "context.delay_level_when_next_consume = {v}",
        "msgs[0].properties.clear()",
        "del context.ack_index",
    ),
    *("msgs[0].topic = 'other'", "os.chdir('..')", "sys.stdout.write('x' * 1000)", "print('\\ud800')"),
    *("threading.Thread(target=sys.exit).start()", "gc.collect()", "os.environ['A'] = 'b'"),
    *("warnings.warn('x')", "logging.error('x')", "sys.stderr.flush()", "random.seed(0)"),
)
_COLUMNS = (
    *(
        "('queue_offset',)",
        "('body', 'properties')",
        "('body', 'body')",
        "()",
        "'body'",
        "('unknown',)",
        "('commit_id',)",
        "(1,)",
        "None",
    ),
    *(
        "('kind', 'part', 'rel')",
        "['topic', 'keys', 'tags']",
        "iter(['body'])",
        "('BODY',)",
        "('properties.KEYS',)",
        "{'body': 1}",
        "5",
    ),
    *(
        "('queue_offset', 'commit_log_offset', 'offset_msg_id', 'store_timestamp')",
        "('',)",
        "('reconsume_times', 'outcome')",
        "Odd()",
    ),
)
_HEAD = """
import asyncio, gc, json, logging, os, random, sys, threading, time, warnings
import numpy as np, pandas as pd, pyarrow as pa
from rmq_store.consumer.listener import ConsumeFailed
from rmq_store.errors import *

class BadText(Exception):
    def __str__(self): raise ValueError("no text")
class Odd(Exception):
    def __getattr__(self, name): raise RuntimeError(name)
    def __repr__(self): return 7
    def __eq__(self, other): raise ValueError
    def __bool__(self): raise ValueError
    def __len__(self): return -1
class Lies(list):
    def __len__(self): return 10 ** 9
    def __iter__(self): raise ValueError
class Text(str):
    def __eq__(self, other): return True
    def __hash__(self): return 1
    def __str__(self): return 7
class Terminated2(Exception): pass
def recurse(): return recurse()
"""


def listener(chance: random.Random) -> bytes:
    """A module with ``answer``, ``in_order`` and ``consume_batch``: each may answer, raise and change anything."""
    lines = [_HEAD, f"version = {_value(chance)}"]
    for name, parameters in (
        ("answer", "msgs, context"),
        ("in_order", "msgs, context"),
        ("consume_batch", "batch, context=None"),
    ):
        on_batches = name == "consume_batch"
        lines += ["class Local(Exception): pass", f"def {name}({_changed_parameters(chance, parameters)}):"]
        if on_batches:
            lines.append("    msgs, n = [batch], batch.num_rows")
        for _ in range(chance.randint(0, 2)):
            line = chance.choice(_LINES).replace("{n}", str(nasty_int(chance))).replace("{v}", _value(chance))
            lines.append(f"    {line}")
        value = chance.choice(_BATCHES if on_batches else _CALLS)
        what = chance.randrange(5)
        if what == 0:
            lines.append(f"    raise {chance.choice(_RAISED)}")
        elif what == 1:
            lines.append(f"    if random.random() < .2: raise {chance.choice(_RAISED)}")
        elif what == 2 and not on_batches:
            lines += ["    for m in msgs:", f"        yield {value}"]
        lines.append(f"    return {value}")
        if on_batches or chance.random() < 0.05:
            lines.append(f"{name}.columns = {chance.choice(_COLUMNS)}")
        if chance.random() < 0.1:
            lines.append(f"{name}.version = {_value(chance)}")
    if chance.random() < 0.05:
        lines.append(f"raise {chance.choice(_RAISED)}")
    return as_bytes("\n".join(lines) + "\n")


def _value(chance: random.Random) -> str:
    return chance.choice((repr(nasty_text(chance)), str(nasty_int(chance)), "None", "object()", "1.5", "Odd()", "[]"))


def _changed_parameters(chance: random.Random, parameters: str) -> str:
    return parameters if chance.random() < 0.95 else chance.choice(("", "a", "*a", "a, b, c", "*, a", "a, /, b=1"))
