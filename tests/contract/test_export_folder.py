"""Exports of the DAGs to a folder and to an S3 prefix: the same files, and the file before as ``.bak``."""

from __future__ import annotations

from pathlib import Path

import pytest

from rmq_store.broker_files.config_files import DataVersion
from rmq_store.broker_files.offsets_to_broker import KnownOffsets
from rmq_store.errors import BadData, HeldByAnother
from rmq_store.lake.broker.export import OffsetsExport
from rmq_store.lake.broker.export_folder import merge_export
from rmq_store.lake.table.object_store import Root
from tests.s3 import S3Root

FILES = ["consumerOffset.json", "delayOffset.json"]


def export_of(offset: int) -> OffsetsExport:
    return OffsetsExport(
        offsets=KnownOffsets(committed={"Orders@shop": {0: offset}}),
        delays=KnownOffsets(observed={"SCHEDULE_TOPIC_XXXX": {2: 7}}, never_back=True),
        version=DataVersion(0, 1, 1),
        waiting_retries={},
        waiting_messages={},
        waiting_deleted={},
        given_again={},
        waiting_levels=0,
        left_out={},
        clients=(),
    )


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "folder":
        return str(tmp_path / "exports")
    s3_root: S3Root = request.getfixturevalue("s3_root")
    for name, value in s3_root.env.items():
        monkeypatch.setenv(name, value)
    return s3_root.uri


def texts(place: str) -> dict[str, str]:
    root = Root.parse(f"{place}/shard-1/broker%2Fa")
    return {name: root.read(name).decode() for name, _ in root.list()}


def test_an_export_is_written_once_and_the_file_before_stays(place: str) -> None:
    first = merge_export(place, "shard-1", "broker/a", lambda: export_of(5))
    assert first.file == f"{place}/shard-1/broker%2Fa/consumerOffset.json"
    assert (first.changed, first.lowered, first.notes) == (True, 0, ())
    before = texts(place)
    assert sorted(before) == FILES
    assert not merge_export(place, "shard-1", "broker/a", lambda: export_of(5)).changed
    assert texts(place) == before
    lowered = merge_export(place, "shard-1", "broker/a", lambda: export_of(3))
    assert (lowered.changed, lowered.lowered) == (True, 1)
    assert lowered.notes[0].startswith(f"{lowered.file}: 1 offsets are lowered")
    after = texts(place)
    assert after["consumerOffset.json.bak"] == before["consumerOffset.json"]
    assert '"Orders@shop":{0:3}' in "".join(after["consumerOffset.json"].split())
    assert after["delayOffset.json"] == before["delayOffset.json"]


def test_a_damaged_file_is_not_overwritten_and_named_as_the_user_knows_it(place: str) -> None:
    Root.parse(place).replace("shard-1/broker%2Fa/consumerOffset.json", b"{ this is no JSON")
    with pytest.raises(BadData) as refusal:
        merge_export(place, "shard-1", "broker/a", lambda: export_of(5))
    assert f"{place}/shard-1" in str(refusal.value)
    assert texts(place) == {"consumerOffset.json": "{ this is no JSON"}


def test_the_older_of_two_exports_at_once_is_not_written_over_the_newer_one(place: str) -> None:
    """The other one comes after the first has read the store: it is refused in a folder, and in S3 the first reads again."""
    offsets = [184, 17]

    def exported(offset: int) -> bool:
        return merge_export(place, "shard-1", "broker/a", lambda: export_of(offset)).changed

    def slow() -> OffsetsExport:
        offset = offsets.pop()
        if offset == 17:
            if place.startswith("s3://"):
                assert exported(184)
            else:
                with pytest.raises(HeldByAnother, match=r"another export .* runs: .*export again"):
                    exported(184)
        return export_of(offset)

    merged = merge_export(place, "shard-1", "broker/a", slow)
    assert exported(184) != place.startswith("s3://")
    assert (merged.changed, merged.lowered) == (not place.startswith("s3://"), 0)
    assert '"Orders@shop":{0:184}' in "".join(texts(place)["consumerOffset.json"].split())
    assert sorted(name for name in texts(place) if not name.endswith(".bak")) == FILES, "no lock stays"


def test_objects_that_others_replace_again_and_again_are_left_alone(
    s3_root: S3Root, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_root.env.items():
        monkeypatch.setenv(name, value)
    offsets = iter(range(100, 200))

    def slow() -> OffsetsExport:
        merge_export(s3_root.uri, "shard-1", "broker/a", lambda: export_of(next(offsets)))
        return export_of(17)

    with pytest.raises(HeldByAnother, match=r"other exports .* export again"):
        merge_export(s3_root.uri, "shard-1", "broker/a", slow)
    assert '"Orders@shop":{0:17}' not in "".join(texts(s3_root.uri)["consumerOffset.json"].split())
