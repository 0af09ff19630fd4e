"""A broker that lost the end of its log and wrote on: what the import says of it, and how its groups continue."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_store.broker_files.commit_log_file import list_commit_log
from rmq_store.commit.positions import diverged_id
from rmq_store.errors import BadData
from rmq_store.lake.audit.audit import audit
from rmq_store.lake.audit.finding import Problem
from rmq_store.lake.broker import common_log as common
from rmq_store.lake.broker import import_part
from rmq_store.lake.broker.common_log import CommonLog, common_log
from rmq_store.lake.broker.diverged_log import Continuation
from rmq_store.lake.broker.export import export_offsets
from rmq_store.lake.broker.import_request import ImportReport, ImportRequest
from rmq_store.lake.broker.import_store import import_store
from rmq_store.lake.broker.root_file_source import file_source
from rmq_store.lake.commit import commit as committing
from rmq_store.lake.sql.sql import query
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.window.engine import LocalEngine
from rmq_store.log.record_encoder import encode, new_record
from tests.contract.rmq import ALL_DUE, Rmq
from tests.contract.test_import_store import BROKER, FILE_BYTES, TESTS, Lake, store_of
from tests.planted_shard import PlantedShard

SIZE = 96
"""Bytes of a record of ``store_of`` with a body of four."""


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    return Lake(tmp_path / "lake")


def messages(first: int, last: int, *, of: str = "old") -> list[dict[str, Any]]:
    """Messages [first, last), each third in queue 1, others in queue 0."""
    return [
        {"queue_id": int(n % 3 == 0), "queue_offset": n // 3 if n % 3 == 0 else n - n // 3 - 1, "stored_body": body}
        for n in range(first, last)
        for body in [f"{of[0]}{n:03}".encode()]
    ]


def damaged(folder: Path, *numbers: int) -> Path:
    """The store, with other bytes in the bodies of these messages of its log."""
    log = folder / "commitlog" / f"{0:020}"
    content = bytearray(log.read_bytes())
    for number in numbers:
        at = content.index(b"%03d" % number, number * SIZE)
        content[at : at + 3] = b"xxx"
    log.write_bytes(content)
    return folder


def look(lake: Lake, folder: Path) -> CommonLog | None:
    source = file_source(Root.parse(str(folder)))
    (shard,) = lake.store.shards()
    return common_log(lake.store, shard, source, list_commit_log(source), BROKER, lake.positions()[f"import/{BROKER}"])


@pytest.mark.parametrize("marks", [1, 3, 4096])
@pytest.mark.parametrize("kept", [1, 2, 7, 19])
def test_the_end_of_the_common_log_is_found_by_bisection(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kept: int, marks: int
) -> None:
    monkeypatch.setattr(common, "_MARKS", marks)
    lake.load(store_of(tmp_path / "first", *messages(0, 20)))
    newer = store_of(tmp_path / "newer", *messages(0, kept), *messages(kept, kept + 30, of="new"))
    queues = 2 if kept < 19 else 1
    assert look(lake, newer) == CommonLog(BROKER, kept * SIZE, True, 20 - kept, queues)
    older = store_of(tmp_path / "older", *messages(0, kept))
    assert look(lake, older) == CommonLog(BROKER, kept * SIZE, False, 20 - kept, queues)
    assert look(lake, store_of(tmp_path / "other", *messages(0, 30, of="new"))) is None


@pytest.mark.parametrize("salvage", [False, True])
def test_an_import_says_where_the_log_differs_and_changes_nothing(lake: Lake, tmp_path: Path, salvage: bool) -> None:
    lake.load(store_of(tmp_path / "first", *messages(0, 20)))
    before = lake.positions()
    newer = store_of(tmp_path / "newer", *messages(0, 7), *messages(7, 40, of="new"))
    same = rf"not the one that was imported up to {20 * SIZE}: it is the same up to {7 * SIZE}"
    with pytest.raises(BadData, match=rf"{same}, where other records follow, 13 imported messages in 2 queues are not"):
        lake.load(newer, salvage=salvage)
    older = store_of(tmp_path / "older", *messages(0, 7))
    with pytest.raises(BadData, match=rf"{same} and ends there, 13 imported messages .*an older copy"):
        lake.load(older, salvage=salvage)
    assert lake.positions() == before


def test_records_whose_properties_have_a_zero_are_in_both_logs(lake: Lake, tmp_path: Path) -> None:
    """Also the last one that both have, behind which the shorter log has nothing."""
    zero = [message | {"properties": {"TAGS": "a\0"}} for message in messages(0, 9)]
    lake.load(store_of(tmp_path / "first", *zero, *messages(9, 20)))
    size = SIZE + len("TAGS.a0.")
    newer = store_of(tmp_path / "newer", *zero[:7], *messages(7, 40, of="new"))
    assert look(lake, newer) == CommonLog(BROKER, 7 * size, True, 13, 2)
    assert look(lake, store_of(tmp_path / "older", *zero[:7])) == CommonLog(BROKER, 7 * size, False, 13, 2)


def with_other_tag(folder: Path) -> Path:
    """The same store, whose last record was imported before the broker had written its tag."""
    file = folder / "commitlog" / f"{0:020}"
    file.write_bytes(file.read_bytes().replace(b"xxxx", b"paid"))
    return folder


@pytest.mark.parametrize("salvage", [False, True])
def test_a_last_record_that_has_other_bytes_now_is_not_called_an_older_copy(
    lake: Lake, tmp_path: Path, salvage: bool
) -> None:
    tagged = messages(4, 5)[0] | {"properties": {"TAGS": "xxxx"}}
    first = lake.load(store_of(tmp_path / "first", *messages(0, 4), tagged))
    before = lake.positions()
    other = f"up to {first.end}: every imported record is in it, but the last bytes that were imported are others here"
    now = with_other_tag(store_of(tmp_path / "now", *messages(0, 4), tagged))
    with pytest.raises(BadData, match=rf"{other}.*, once the broker has written on \(--continue-as NAME\)") as raised:
        lake.load(now, salvage=salvage)
    assert "older copy" not in str(raised.value)
    newer = with_other_tag(store_of(tmp_path / "newer", *messages(0, 4), tagged, *messages(5, 9)))
    with pytest.raises(BadData, match=rf"{other}.*another broker name \(--continue-as NAME\)") as raised:
        lake.load(newer, salvage=salvage)
    assert "lost the end of its log, wrote on" not in str(raised.value)
    assert lake.positions() == before
    report = continued(lake, newer)
    assert (report.messages, report.begin) == (4, first.end)
    assert report.continued is not None
    assert (report.continued.end, report.continued.lost_messages) == (first.end, 0)


SETTINGS = """
[[group]]
name = "g"
listener = "cli_listener:keep"
consume_from_where = "CONSUME_FROM_FIRST_OFFSET"
engine = "local"

[[group.subscription]]
topic = "T"
"""

LISTENER = """
def keep(msgs, context):
    with open("bodies.txt", "a") as file:
        file.writelines(f"{m.body.decode()} " for m in msgs)
    return "CONSUME_SUCCESS"
"""


# --- the command ------------------------------------------------------------------------------------------------------

CONTINUE = ("--continue-as", "broker-a-2", "--reason", "the disk was replaced")
OFFSETS_OF_G = "SELECT broker_name, queue_id, next_offset FROM consumer_offsets WHERE group_name = 'g' AND topic = 'T'"
MESSAGES = "SELECT topic, broker_name, queue_id, queue_offset, decode(body) AS body FROM messages"


@pytest.fixture
def stores(rmq: Rmq) -> tuple[str, str]:
    """The broker's store when it was imported first, and after it lost messages [7, 20) and wrote [7, 40)."""
    (rmq.folder / "consumers.toml").write_text(SETTINGS)
    (rmq.folder / "cli_listener.py").write_text(LISTENER)
    first = store_of(rmq.folder / "first", *messages(0, 20))
    newer = store_of(rmq.folder / "newer", *messages(0, 7), *messages(7, 40, of="new"))
    rmq.json("init")
    rmq.json("import-store", str(first), "--broker", "broker-a")
    return str(first), str(newer)


EACH = sorted([f"o{n:03}" for n in range(20)] + [f"n{n:03}" for n in range(7, 40)])


@pytest.mark.parametrize("consumed", [0, 5, 12, 20])
def test_each_message_is_consumed_once_wherever_the_group_was_before(
    rmq: Rmq, stores: tuple[str, str], consumed: int
) -> None:
    if consumed:
        rmq.json("consume", "--group", "g", "--max-messages", str(consumed))
    assert rmq("import-store", stores[1], "--broker", "broker-a").exit_code == 1
    answer = rmq.json("import-store", stores[1], "--broker", "broker-a", *CONTINUE)
    continued = {
        "broker_name": "broker-a",
        "end": 7 * SIZE,
        "lost_messages": 13,
        "lost_queues": 2,
        "groups": int(consumed > 0),
    }
    assert (answer["continued"], answer["messages"], answer["shard"]) == (continued, 33, "broker-a")
    (epoch,) = rmq.json("sql", "SELECT max(value) AS value FROM positions WHERE kind = 'grp' AND group_name = 'g'")
    assert epoch["value"] == (1 if consumed else None)  # so that a window that runs meanwhile cannot commit
    rmq.json("consume", "--group", "g")
    assert sorted((rmq.folder / "bodies.txt").read_text().split()) == EACH
    rows = rmq.json("sql", MESSAGES)
    assert sorted(row["body"] for row in rows) == EACH
    assert len({tuple(row.values())[:4] for row in rows}) == len(rows)
    assert [row["body"] for row in rows if row["broker_name"] == "broker-a-2" and row["body"][0] != "n"] == []
    assert rmq.json("audit")["audit"] == []
    (ctl,) = rmq.json("sql", "SELECT reason, parameters FROM ctl WHERE action = 'import' AND reason <> ''")
    assert ctl["reason"] == "the disk was replaced"


def test_damage_before_the_cut_stops_nothing(rmq: Rmq, stores: tuple[str, str]) -> None:
    """What both have is here already, damaged at the broker or not."""
    newer = str(damaged(Path(stores[1]), 2, 5))
    rmq.json("consume", "--group", "g", "--max-messages", "5")
    answer = rmq.json("import-store", newer, "--broker", "broker-a", *CONTINUE)
    assert (answer["continued"]["end"], answer["continued"]["lost_messages"]) == (7 * SIZE, 13)
    rmq.json("consume", "--group", "g")
    assert sorted((rmq.folder / "bodies.txt").read_text().split()) == EACH
    assert sorted(row["body"] for row in rmq.json("sql", MESSAGES)) == EACH
    assert rmq.json("audit")["audit"] == []


@pytest.mark.parametrize(
    "numbers", [(7,), (6, 7, 8, 25), (3, 5, 12)], ids=["at the cut", "around the cut", "behind it"]
)
def test_damage_behind_the_cut_is_refused_and_changes_nothing(
    rmq: Rmq, stores: tuple[str, str], numbers: tuple[int, ...]
) -> None:
    newer = str(damaged(Path(stores[1]), *numbers))
    before = rmq.json("sql", "SELECT * FROM positions WHERE kind <> 'own'")
    for options, words in (
        ((), "once the broker has written on"),
        (("--salvage",), "Restore the file, as from a slave or a backup"),
    ):
        refused = rmq("import-store", newer, "--broker", "broker-a", *CONTINUE, *options)
        assert (refused.exit_code > 0, words in refused.err) == (True, True), refused
    assert rmq.json("sql", "SELECT * FROM positions WHERE kind <> 'own'") == before


@pytest.mark.parametrize(
    "end", [b"\0\0\0\x60", b"\0\0\0\x60\xda\xa3\x20\xa7", b"no record" * 40], ids=["size", "head", "other"]
)
def test_a_copy_that_ends_in_a_record_is_an_older_one(rmq: Rmq, stores: tuple[str, str], end: bytes) -> None:
    """Nothing was lost, and what follows in the next copy is here already."""
    older = store_of(rmq.folder / "older", *messages(0, 7))
    log = older / "commitlog" / f"{0:020}"
    content = bytearray(log.read_bytes())
    content[7 * SIZE : 7 * SIZE + len(end)] = end
    log.write_bytes(content)
    for options in ((), CONTINUE):
        refused = rmq("import-store", str(older), "--broker", "broker-a", *options)
        assert (refused.exit_code > 0, "and ends there" in refused.err) == (True, True), refused
    assert rmq.json("import-store", stores[0], "--broker", "broker-a")["status"] == "unchanged"


@pytest.mark.parametrize("at", [15, 26, 47, 63, 93], ids=lambda at: f"byte-{at}")
@pytest.mark.parametrize("number", [0, 11, 17, 19])
def test_a_field_without_a_checksum_that_was_changed_is_no_cut(
    rmq: Rmq, stores: tuple[str, str], number: int, at: int
) -> None:
    """The records behind it are those that were imported: in the store twice, each group would consume them twice."""
    more = store_of(rmq.folder / "more", *messages(0, 30))
    log = more / "commitlog" / f"{0:020}"
    content = bytearray(log.read_bytes())
    content[number * SIZE + at] ^= 4
    log.write_bytes(content)
    rmq.json("consume", "--group", "g", "--max-messages", "15")
    answer = rmq("import-store", str(more), "--broker", "broker-a")
    assert (answer.exit_code, "every imported record is in it" in answer.err) == (1, True), answer
    assert rmq.json("import-store", str(more), "--broker", "broker-a", *CONTINUE)["messages"] == 10
    rmq.json("consume", "--group", "g")
    assert sorted((rmq.folder / "bodies.txt").read_text().split()) == [f"o{n:03}" for n in range(30)]


def test_a_second_run_does_nothing_and_the_old_name_is_closed(rmq: Rmq, stores: tuple[str, str]) -> None:
    first, newer = stores
    tried = rmq.json("import-store", newer, "--broker", "broker-a", "--continue-as", "broker-a-2", "--dry-run")
    assert (tried["status"], tried["continued"]["end"]) == ("dry_run", 7 * SIZE)
    assert rmq("import-store", newer, "--broker", "broker-a-2", "--shard", "broker-a", "--dry-run").exit_code == 2
    for dry_run in ((), ("--dry-run",)):
        mistyped = rmq("import-store", newer, "--broker", "broker-a", *CONTINUE, "--shard", "broker-b", *dry_run)
        assert (mistyped.exit_code, "no shard broker-b" in mistyped.err) == (2, True)
    assert [row["shard"] for row in rmq.json("sql", "SELECT DISTINCT shard FROM positions")] == ["broker-a"]
    answer = rmq.json("import-store", newer, "--broker", "broker-a", *CONTINUE, "--request", "2026-01-01-cut")
    again = rmq.json("import-store", newer, "--broker", "broker-a", *CONTINUE, "--request", "2026-01-01-cut")
    assert again == answer | {"status": "already_committed", "warnings": []}
    for source in (first, newer):
        closed = rmq("import-store", source, "--broker", "broker-a")
        assert (closed.exit_code, "use that name (--broker broker-a-2 --shard broker-a)" in closed.err) == (2, True)
    more = rmq.json("import-store", newer, "--broker", "broker-a", *CONTINUE)
    assert (more["status"], more["continued"]) == ("unchanged", None)
    assert rmq.json("import-store", newer, "--broker", "broker-a-2", "--shard", "broker-a")["status"] == "unchanged"
    other = rmq("import-store", newer, "--broker", "broker-a-2")
    assert (other.exit_code, "--shard broker-a" in other.err) == (2, True)
    assert len(rmq.json("sql", MESSAGES)) == len(EACH)


def test_a_log_that_was_imported_is_refused_under_another_name(rmq: Rmq, stores: tuple[str, str]) -> None:
    """Also one that lost its end, a copy of which the begin is damaged, and into a shard of its own, as that of a slave."""
    newer = str(damaged(Path(stores[1]), 0))
    third = str(store_of(rmq.folder / "third", *messages(0, 5), *messages(5, 9, of="third")))
    for closed in (False, True):
        for source in (stores[0], newer, third):
            for options in (("--shard", "broker-a", "--salvage"), ("--salvage",), ()):
                answer = rmq("import-store", source, "--broker", "broker-b", *options)
                name = "broker-a-2" if closed else "broker-a"
                advice = f"Import it with --broker {name} --shard broker-a"
                assert (answer.exit_code, advice in answer.err) == (2, True), answer
                assert "--continue-as broker-b" in answer.err
        assert [shard["shard"] for shard in rmq.json("sql", "SELECT DISTINCT shard FROM positions")] == ["broker-a"]
        if not closed:
            rmq.json("import-store", newer, "--broker", "broker-a", *CONTINUE)
    assert sorted(row["body"] for row in rmq.json("sql", MESSAGES)) == EACH


@pytest.mark.parametrize(
    "other",
    [
        {"store_host": "127.0.0.1|10912"},
        {"store_timestamp": 1_700_000_000_001},
        {"born_timestamp": 2},
        {"born_host": "127.0.0.1|1"},
        {"topic": "U"},
        {"queue_id": 0},
        {"stored_body": b"p000"},
    ],
)
def test_another_broker_with_the_same_offsets_is_never_refused(
    lake: Lake, tmp_path: Path, other: dict[str, Any]
) -> None:
    """The first records differ in one field, the others in their bodies, and all have the same size."""
    first, *rest = messages(0, 4)
    lake.load(store_of(tmp_path / "first", first, *rest))
    source = store_of(tmp_path / "other", first | other, *messages(1, 4, of="new"))
    assert lake.load(source, broker="broker-b").messages == 4


def test_what_cannot_be_continued_is_refused_and_changes_nothing(rmq: Rmq, stores: tuple[str, str]) -> None:
    first, newer = stores
    older = str(store_of(rmq.folder / "older", *messages(0, 7)))
    other = str(store_of(rmq.folder / "other", *messages(0, 30, of="new")))
    positions = rmq.json("sql", "SELECT * FROM positions WHERE kind <> 'own'")
    for source, options, words in [
        (first, (), "there is nothing to continue"),
        (older, (), "ends there"),
        (other, (), "the store of another broker"),
        (newer, ("--salvage",), "takes no --salvage"),
    ]:
        answer = rmq("import-store", source, "--broker", "broker-a", *CONTINUE, *options)
        assert (answer.exit_code > 0, words in answer.err) == (True, True), answer
    assert rmq("import-store", newer, "--broker", "broker-a", *CONTINUE[:2]).exit_code == 2
    assert rmq("import-store", newer, "--broker", "broker-b", *CONTINUE, "--shard", "broker-a").exit_code == 2
    assert rmq("import-store", newer, "--broker", "broker-a", "--continue-as", "broker-a", *CONTINUE[2:]).exit_code == 2
    assert rmq.json("sql", "SELECT * FROM positions WHERE kind <> 'own'") == positions


def test_a_place_that_cannot_be_proved_is_refused(lake: Lake, tmp_path: Path) -> None:
    """A salvage left out the record there, so that the logs may be the same for longer."""
    first = store_of(tmp_path / "first", *messages(0, 20))
    log = first / "commitlog" / f"{0:020}"
    log.write_bytes(log.read_bytes().replace(b"o007", b"x007"))
    lake.load(first, salvage=True)
    newer = store_of(tmp_path / "newer", *messages(0, 7), *messages(7, 40, of="new"))
    before = lake.positions()
    with pytest.raises(BadData, match=f"the same at least up to {7 * SIZE}, but .*a salvage left them out"):
        continued(lake, newer)
    assert lake.positions() == before


def test_damage_behind_which_the_logs_may_still_be_the_same_is_not_passed_over(lake: Lake, tmp_path: Path) -> None:
    """The first import has left out message 7, so nothing tells whether it is the one that the broker has behind the damage:
    8 is in both logs."""
    lake.load(damaged(store_of(tmp_path / "first", *messages(0, 20)), 7), salvage=True)
    newer = store_of(tmp_path / "newer", *messages(0, 9), *messages(9, 40, of="new"))
    before = lake.positions()
    with pytest.raises(
        BadData, match=f"the same at least up to {4 * SIZE}, but .*cannot be proved where the two differ"
    ):
        continued(lake, damaged(newer, 4, 5, 6))
    assert lake.positions() == before


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", ["2.claimed", "4.ctl-written", "5.put"])
def test_a_kill_at_any_step_and_a_rerun_end_the_same(
    rmq: Rmq, stores: tuple[str, str], monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    def dies(reached: str) -> None:
        if reached == step:
            raise Killed

    rmq.json("consume", "--group", "g", "--max-messages", "5")
    arguments = ("import-store", stores[1], "--broker", "broker-a", *CONTINUE, "--request", "2026-01-01-cut")
    with monkeypatch.context() as patch:
        patch.setattr(committing, "on_step", dies)
        assert "Killed" in rmq(*arguments).err
    assert len(rmq.json("sql", MESSAGES)) in (20, len(EACH))
    answer = rmq.json(*arguments)
    assert (answer["continued"]["groups"], answer["messages"]) == (1, 33)
    rmq.json("consume", "--group", "g")
    assert sorted((rmq.folder / "bodies.txt").read_text().split()) == EACH
    assert rmq.json("audit")["audit"] == []


# --- the broker's own groups, its delay levels, and the way back --------------------------------------------------------


def table_of(rmq: Rmq, broker: str = "broker-a-2") -> Any:
    text = rmq.json("offsets", "export", "--broker", broker)["text"]
    return {key: {int(queue): offset for queue, offset in queues.items()} for key, queues in parsed(text).items()}


def parsed(text: str) -> Any:
    return json.loads(re.sub(r"(\d+):", r'"\1":', text))["offsetTable"]


@pytest.mark.parametrize(
    ("consumed", "offsets"),
    [(2, {0: 1, 1: 1}), (12, {0: 4, 1: 3}), (20, {0: 4, 1: 3})],
)
def test_an_export_has_the_offsets_of_the_broker(
    rmq: Rmq, stores: tuple[str, str], consumed: int, offsets: dict[int, int]
) -> None:
    """Where the group has not consumed all that both have, the broker gives it the rest."""
    rmq.json("consume", "--group", "g", "--max-messages", str(consumed))
    rmq.json("import-store", stores[1], "--broker", "broker-a", *CONTINUE)
    assert table_of(rmq) == {"T@g": offsets}
    refused = rmq("offsets", "export", "--broker", "broker-a")
    assert (refused.exit_code, "goes on as broker broker-a-2" in refused.err) == (2, True)
    rmq.json("consume", "--group", "g")
    assert table_of(rmq) == {"T@g": {0: 26, 1: 14}}


def test_what_was_consumed_under_both_names_is_not_consumed_again_after_a_hand_back(
    rmq: Rmq, stores: tuple[str, str]
) -> None:
    """The group has not consumed all before the cut, and some messages behind it. The broker has one offset, and no client."""
    rmq.json("import-store", stores[1], "--broker", "broker-a", *CONTINUE)
    name = ("--broker", "broker-a-2")
    rmq.json("cutover", *name, "--reason", "switched off")
    rmq.json("consume", "--group", "g", "--max-messages", "12")
    at = {(row["broker_name"], row["queue_id"]): row["next_offset"] for row in rmq.json("sql", OFFSETS_OF_G)}
    again = sum(at["broker-a-2", queue] - cut for queue, cut in ((0, 4), (1, 3)) if at["broker-a", queue] < cut)
    file = Path(stores[1], "config", "consumerOffset.json")
    file.parent.mkdir()
    export = ("offsets", "export", *name, str(file))
    answer = rmq(*export)
    assert (rmq.json(*export)["given_again"], again > 0) == ({"T@g": again}, True)
    assert f"T@g: the broker gives the group {again} messages again that it has consumed here" in answer.err
    rmq.json("hand-back", *name, "--reason", "it runs again")
    rmq.json("import-store", stores[1], *name, "--shard", "broker-a")
    rmq.json("cutover", *name, "--reason", "switched off")
    rmq.json("consume", "--group", "g")
    assert sorted((rmq.folder / "bodies.txt").read_text().split()) == EACH


@pytest.mark.parametrize(
    ("consumed", "offset", "here"),
    [
        (0, 2, {"broker-a": 2, "broker-a-2": 4}),
        (0, 20, {"broker-a": 4, "broker-a-2": 20}),
        (20, 2, {"broker-a": 2, "broker-a-2": 4}),
        (20, 20, {"broker-a": 13, "broker-a-2": 20}),
    ],
)
def test_offsets_of_the_broker_are_set_in_the_queues_of_both_names(
    rmq: Rmq, stores: tuple[str, str], consumed: int, offset: int, here: dict[str, int]
) -> None:
    """What the broker has lost it cannot say to be consumed, nor not to be."""
    if consumed:
        rmq.json("consume", "--group", "g", "--max-messages", str(consumed))
    rmq.json("import-store", stores[1], "--broker", "broker-a", *CONTINUE)
    file = rmq.folder / "consumerOffset.json"
    file.write_text(json.dumps({"offsetTable": {"T@g": {"0": offset}}}))
    to_import = ("offsets", "import", str(file), "--group", "g", "--reason", "it moved here")
    refused = rmq(*to_import, "--broker", "broker-a")
    assert (refused.exit_code, "goes on as broker broker-a-2" in refused.err) == (2, True)
    rmq.json(*to_import, "--broker", "broker-a-2")
    rows = rmq.json("sql", OFFSETS_OF_G)
    assert {row["broker_name"]: row["next_offset"] for row in rows if row["queue_id"] == 0} == here


def delayed(number: int, queue_offset: int) -> dict[str, Any]:
    """A message of level 3, whose copy belongs into queue 0 of T."""
    properties = {"REAL_TOPIC": "T", "REAL_QID": "0", "UNIQ_KEY": f"key{number}", "DELAY": "3"}
    body = f"d{number:03}".encode()
    place = {"topic": "SCHEDULE_TOPIC_XXXX", "queue_id": 2, "queue_offset": queue_offset}
    return place | {"properties": properties, "stored_body": body}


def in_t(body: str, queue_offset: int, key: int | None = None) -> dict[str, Any]:
    properties = {} if key is None else {"REAL_TOPIC": "T", "REAL_QID": "0", "UNIQ_KEY": f"key{key}"}
    return {"queue_id": 0, "queue_offset": queue_offset, "stored_body": body.encode(), "properties": properties}


def configs_of(folder: Path, offset: int, delay: int) -> Path:
    (folder / "config").mkdir()
    (folder / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": {"T@g": {"0": offset}}}))
    (folder / "config" / "delayOffset.json").write_text(json.dumps({"offsetTable": {"3": delay}}))
    return folder


@pytest.mark.slow
def test_a_cut_over_takes_over_what_waits_under_both_names(rmq: Rmq) -> None:
    """The broker had delivered nothing when it lost delayed message 2, and delivered 0 afterwards. At first its copies have no
    ``delayOffset.json``."""
    (rmq.folder / "consumers.toml").write_text(SETTINGS)
    (rmq.folder / "cli_listener.py").write_text(LISTENER)
    common = [in_t("c000", 0), delayed(0, 0), in_t("c001", 1), delayed(1, 1)]
    first = store_of(rmq.folder / "first", *common, in_t("o000", 2), delayed(2, 2))
    newer = store_of(rmq.folder / "newer", *common, in_t("n000", 2), delayed(3, 2), in_t("d000", 3, key=0))
    rmq.json("init")
    for files, options in ((configs_of(first, 0, 0), ()), (configs_of(newer, 1, 1), CONTINUE)):
        delays = (files / "config" / "delayOffset.json").rename(rmq.folder / "delayOffset.json")
        rmq.json("import-store", str(files), "--broker", "broker-a", *options)
    assert rmq.json("offsets", "export", "--broker", "broker-a-2")["waiting_levels"] == 3
    delays.rename(newer / "config" / "delayOffset.json")
    rmq.json("import-store", str(newer), "--broker", "broker-a-2", "--shard", "broker-a")
    assert table_of(rmq) == {"T@g": {0: 1}}
    old = rmq("cutover", "--broker", "broker-a", "--reason", "switched off")
    assert (old.exit_code, "use that name (--broker broker-a-2" in old.err) == (2, True)
    report = rmq.json("cutover", "--broker", "broker-a-2", "--reason", "switched off")
    assert (report["groups"], report["waiting"]) == (1, 3)
    rmq.json("deliver", "--now", ALL_DUE)
    rmq.json("consume", "--group", "g")
    consumed = sorted((rmq.folder / "bodies.txt").read_text().split())
    assert consumed == ["c001", "d000", "d001", "d002", "d003", "n000", "o000"]
    assert rmq.json("audit")["audit"] == []


def test_one_copy_does_not_show_two_delayed_messages_under_both_names_as_delivered(rmq: Rmq) -> None:
    """They are the same in all that a copy has of its message, as when a producer did not get the first answer."""
    (rmq.folder / "consumers.toml").write_text(SETTINGS)
    (rmq.folder / "cli_listener.py").write_text(LISTENER)
    common = [in_t("c000", 0), delayed(0, 0)]
    first = store_of(rmq.folder / "first", *common, in_t("o000", 1))
    newer = store_of(rmq.folder / "newer", *common, in_t("n000", 1), delayed(0, 1), in_t("d000", 2, key=0))
    rmq.json("init")
    for files, options in ((configs_of(first, 0, 0), ()), (configs_of(newer, 0, 0), CONTINUE)):
        rmq.json("import-store", str(files), "--broker", "broker-a", *options)
    report = rmq.json("cutover", "--broker", "broker-a-2", "--reason", "switched off")
    assert (report["waiting"], [level["uncertain"] for level in report["levels"]]) == (2, [1, 1])
    rmq.json("deliver", "--now", ALL_DUE)
    rmq.json("consume", "--group", "g")
    assert sorted((rmq.folder / "bodies.txt").read_text().split()) == ["c000", "d000", "d000", "d000", "n000", "o000"]


@pytest.mark.parametrize(("before", "now", "old", "new"), [(1, 2, 2, 4), (2, 6, 4, 6), (6, 3, 6, 4), (6, 8, 6, 8)])
def test_a_group_of_the_broker_begins_where_the_broker_has_it(
    rmq: Rmq, before: int, now: int, old: int, new: int
) -> None:
    """Its offsets in the files of the two imports, and where its first window begins. The log was cut at offset 4."""
    (rmq.folder / "consumers.toml").write_text(SETTINGS)
    (rmq.folder / "cli_listener.py").write_text(LISTENER)
    first = store_of(rmq.folder / "first", *(in_t(f"o{n:03}", n) for n in range(8)))
    newer = store_of(rmq.folder / "newer", *(in_t(f"{'on'[n > 3]}{n:03}", n) for n in range(10)))
    rmq.json("init")
    rmq.json("import-store", str(configs_of(first, before, 0)), "--broker", "broker-a")
    answer = rmq.json("import-store", str(configs_of(newer, now, 0)), "--broker", "broker-a", *CONTINUE)
    assert answer["continued"]["groups"] == 0
    assert table_of(rmq) == {"T@g": {0: old if old < 4 else new}}
    rmq.json("consume", "--group", "g")
    consumed = sorted((rmq.folder / "bodies.txt").read_text().split())
    assert consumed == sorted([f"o{n:03}" for n in range(old, 8)] + [f"n{n:03}" for n in range(new, 10)])
    assert rmq.json("audit")["audit"] == []


@pytest.mark.slow
def test_a_log_may_be_cut_twice(rmq: Rmq, stores: tuple[str, str]) -> None:
    third = store_of(rmq.folder / "third", *messages(0, 7), *messages(7, 12, of="new"), *messages(12, 30, of="third"))
    rmq.json("consume", "--group", "g", "--max-messages", "5")
    rmq.json("import-store", stores[1], "--broker", "broker-a", *CONTINUE)
    options = ("--broker", "broker-a-2", "--shard", "broker-a", "--continue-as", "broker-a-3", "--reason", "again")
    answer = rmq.json("import-store", str(third), *options)
    assert (answer["continued"]["end"], answer["continued"]["groups"], answer["messages"]) == (12 * SIZE, 1, 18)
    rmq.json("consume", "--group", "g")
    each = sorted([*EACH, *(f"t{n:03}" for n in range(12, 30))])
    assert sorted((rmq.folder / "bodies.txt").read_text().split()) == each
    assert table_of(rmq, "broker-a-3") == {"T@g": {0: 20, 1: 10}}
    assert rmq.json("audit")["audit"] == []


@pytest.mark.slow
def test_a_log_may_be_cut_again_at_the_same_place(rmq: Rmq, stores: tuple[str, str]) -> None:
    """A broker that is restored from one backup twice has nothing of what it wrote in between."""
    third = store_of(rmq.folder / "third", *messages(0, 7), *messages(7, 30, of="third"))
    fourth = store_of(rmq.folder / "fourth", *messages(0, 7), *messages(7, 15, of="fourth"))
    rmq.json("consume", "--group", "g", "--max-messages", "5")
    rmq.json("import-store", stores[1], "--broker", "broker-a", *CONTINUE)
    rmq.json("consume", "--group", "g", "--max-messages", "20")
    for number, source, lost in ((3, third, 33), (4, fourth, 23)):
        before = f"broker-a-{number - 1}"
        names = ("--broker", before, "--shard", "broker-a", "--continue-as", f"broker-a-{number}", "--reason", "again")
        told = rmq("import-store", str(source), *names[:4])
        assert (told.exit_code, f"the same up to {7 * SIZE}, where other records follow" in told.err) == (1, True)
        continued = rmq.json("import-store", str(source), *names)["continued"]
        assert continued == {
            "broker_name": before, "end": 7 * SIZE, "lost_messages": lost, "lost_queues": 2, "groups": 1
        }  # fmt: skip
        rmq.json("consume", "--group", "g", "--max-messages", "9")
    rmq.json("consume", "--group", "g")
    each = sorted([*EACH, *(f"t{n:03}" for n in range(7, 30)), *(f"f{n:03}" for n in range(7, 15))])
    assert sorted((rmq.folder / "bodies.txt").read_text().split()) == each
    assert sorted(row["body"] for row in rmq.json("sql", MESSAGES)) == each
    assert table_of(rmq, "broker-a-4") == {"T@g": {0: 10, 1: 5}}
    assert rmq.json("audit")["audit"] == []


@pytest.mark.parametrize(
    ("source", "end"),
    [
        ([*messages(0, 4), *messages(4, 30, of="third")], 4),
        ([*messages(0, 20), *messages(20, 30, of="third")], 20),
    ],
    ids=["it lost more than before", "it has again what it had lost"],
)
def test_a_log_that_is_the_one_of_an_earlier_name_is_not_called_another_brokers(
    rmq: Rmq, stores: tuple[str, str], source: list[dict[str, Any]], end: int
) -> None:
    third = str(store_of(rmq.folder / "third", *source))
    rmq.json("import-store", stores[1], "--broker", "broker-a", *CONTINUE)
    positions = rmq.json("sql", "SELECT * FROM positions WHERE kind <> 'own'")
    of_newest = ("--broker", "broker-a-2", "--shard", "broker-a")
    for options in (of_newest, (*of_newest, "--continue-as", "broker-a-3", "--reason", "again")):
        answer = rmq("import-store", third, *options)
        assert answer.exit_code == 1
        assert f"the same as the imported log of broker broker-a up to {end * SIZE}," in answer.err
        assert "another broker. Import it" not in answer.err
    assert rmq.json("sql", "SELECT * FROM positions WHERE kind <> 'own'") == positions


# --- a real broker's store, in parts ------------------------------------------------------------------------------------


def continued(lake: Lake, source: Path, request: str = "2026-01-01-cut") -> ImportReport:
    import_request = ImportRequest(
        broker_name="broker-a-2",
        shard_name="s1",
        request_id=request,
        actor=TESTS,
        continues=Continuation(BROKER, "the disk was replaced"),
    )
    return import_store(lake.store, Root.parse(str(source)), import_request, lake.host, LocalEngine(lake.host))


CONTENT = """
SELECT topic, queue_id, queue_offset, commit_log_offset, md5(body) AS body, min(broker_name) AS name, count(*) AS copies
FROM messages GROUP BY ALL ORDER BY ALL
"""


@pytest.mark.parametrize("killed_in_part", [0, 1, 2])
def test_a_real_log_that_was_cut_ends_as_its_own_import_and_what_was_lost(
    lake: Lake,
    broker_store: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    killed_in_part: int,
) -> None:
    """The first import had other messages at the end; the broker has delay levels, retries and several files."""
    monkeypatch.setattr(import_part, "part_bytes", lambda queues, log_bytes: FILE_BYTES)
    newer = broker_store("market-killed")
    whole = Lake(tmp_path / "whole")
    whole.load(newer)
    rows = query(whole.store, "SELECT * FROM messages ORDER BY commit_log_offset").to_pylist()
    at = next(number for number, row in enumerate(rows) if row["commit_log_offset"] > FILE_BYTES * 3 // 2)
    end = rows[at]["commit_log_offset"]
    older = Path(shutil.copytree(newer, tmp_path / "older"))
    for file in (older / "commitlog").iterdir():
        if int(file.name) > end:
            file.unlink()
    log = older / "commitlog" / f"{FILE_BYTES:020}"
    lost = b""
    for row in rows[at : at + 60]:
        place = {"commit_log_offset": end + len(lost), "topic": row["topic"], "queue_id": row["queue_id"]}
        times = {"born_timestamp": 1, "store_timestamp": row["store_timestamp"] + 1}
        value = place | times | {"queue_offset": row["queue_offset"], "stored_body": b"lost", "properties": {}}
        lost += encode(new_record(**value))
    log.write_bytes((log.read_bytes()[: end - FILE_BYTES] + lost).ljust(FILE_BYTES, b"\0"))
    shutil.rmtree(older / "consumequeue")
    lake.load(older)
    numbers = iter(range(1, 100))

    def dies(reached: str) -> None:
        if reached == "5.put" and next(numbers) == killed_in_part:
            raise Killed

    if killed_in_part:
        with monkeypatch.context() as patch:
            patch.setattr(committing, "on_step", dies)
            with pytest.raises(Killed):
                continued(lake, newer)
    report = continued(lake, newer)
    assert report.continued is not None
    assert (report.continued.end, report.continued.lost_messages) == (end, 60)
    assert report.messages == len(rows) - at
    assert continued(lake, newer, "2026-01-01-again").status == "unchanged"

    content = query(lake.store, CONTENT).to_pylist()
    assert {row["copies"] for row in content} == {1}
    lost_rows = [row for row in content if row["name"] == BROKER and row["commit_log_offset"] >= end]
    assert len(lost_rows) == 60
    kept = [{**row, "name": BROKER} for row in content if row not in lost_rows]
    assert kept == query(whole.store, CONTENT).to_pylist()
    (shard,), (other,) = lake.store.shards(), whole.store.shards()
    assert {queue.broker_name for queue in shard.positions().all_queues()} == {BROKER, "broker-a-2"}
    exports = [export_offsets(other, BROKER), export_offsets(shard, "broker-a-2")]
    assert exports[0].offsets.table == exports[1].offsets.table
    assert exports[0].delays.table == exports[1].delays.table
    assert query(lake.store, "SELECT * FROM audit").num_rows == 0


def test_a_broker_that_no_import_continues_is_named(lake: Lake, tmp_path: Path) -> None:
    """The position of a continued log without its record, as another tool may leave it."""
    broker = store_of(tmp_path / "first", *messages(0, 20))
    lake.load(broker)
    (shard,) = lake.store.shards()
    PlantedShard(Path(shard.root.location), shard.name).set_position(diverged_id(BROKER), 100)
    for read in (lambda: lake.load(broker), lambda: export_offsets(shard, BROKER)):
        with pytest.raises(
            BadData, match=rf"no import that continues the log of broker {BROKER}, which by the position"
        ):
            read()
    assert Problem.POSITION_NOT_RECORDED in {finding.problem for finding in audit(lake.store)}
