"""Parquet's Bloom filters, compared with those that pyarrow writes."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rmq_store.utils.bloom_filter import bitset, may_contain, xxh64


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_xxh64_has_its_published_values(text: bytes, expected: int) -> None:
    assert xxh64(text) == expected


def _written(texts: list[str]) -> bytes:
    """The filter of a column with these texts, as pyarrow writes it."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"k": texts}), sink, bloom_filter_options={"k": {"ndv": len(texts), "fpp": 0.01}})
    content = sink.getvalue()
    chunk = pq.read_metadata(pa.BufferReader(content)).row_group(0).column(0)
    filter_: bytes = content.slice(chunk.bloom_filter_offset, chunk.bloom_filter_length).to_pybytes()
    return filter_


def test_every_text_of_any_length_is_in_its_filter_and_few_others_are() -> None:
    texts = [chr(33 + length % 90) * length for length in range(300)] + ["Schlüssel", "钥匙", "🔑" * 20]
    texts += [f"order-{number}" for number in range(5_000)]
    bits = bitset(_written(texts))
    assert bits is not None
    assert all(may_contain(bits, xxh64(text.encode())) for text in texts)
    assert sum(may_contain(bits, xxh64(f"absent-{number}".encode())) for number in range(2_000)) < 60


@pytest.mark.parametrize("size", [1, 2, 40, 3_000])
def test_filters_of_all_sizes_are_read(size: int) -> None:
    assert bitset(_written([str(number) for number in range(size)])) is not None


def test_a_filter_of_another_form_is_not_used() -> None:
    filter_ = _written(["a", "b"])
    assert bitset(b"") is None
    assert bitset(filter_[:-1]) is None
    assert bitset(filter_ + b"\0") is None
    for at in range(len(filter_) - 32):
        assert bitset(filter_[:at] + bytes([filter_[at] ^ 1]) + filter_[at + 1 :]) is None
