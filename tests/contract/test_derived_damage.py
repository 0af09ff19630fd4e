"""A derived table that lacks rows, or belongs to another history of the log, is refused; nothing is called lost for it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable

from rmq_store.errors import DerivedTableDamaged
from rmq_store.lake.commit.cursor import COMMIT, commits_at_cursor, cursor_positions
from rmq_store.lake.commit.cursor import COMMITS as NUMBER_OF_COMMITS
from rmq_store.lake.commit.derived_tables import COMMITS, KINDS, QUEUES, Derived
from rmq_store.lake.commit.dispatch import dispatch, staged
from rmq_store.lake.commit.rebuild import check
from rmq_store.lake.commit.tail import Tail, undispatched
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.message.message import MessageQueue
from rmq_store.utils.host import Host
from tests.contract.rmq import ALL_DUE, Rmq
from tests.contract.test_dispatch import doubled, shard_of
from tests.faults.answers import NoAnswer, Put, answer_puts, clean_log
from tests.foreign_tools import protocol_ignored
from tests.lake_damages import QUEUE
from tests.lake_fixtures import Bench
from tests.readers import assert_a_kept_view_agrees, assert_readers_agree

CONSUME = ("consume", "--group", "orders", "--engine", "local")
RESET = ("reset", "--group", "orders", "--topic", "OrderEvents", "--to-min", "--reason", "test")
OF_ORDERS = "topic = 'OrderEvents' AND queue_id = 0"


def drop_rows(root: Path, where: str) -> None:
    """What somebody's DELETE does to the consume queues of the one shard."""
    with protocol_ignored(root / "broker-a" / "consumequeue") as table:
        assert table.delete(where)["num_deleted_rows"]


def refused(rmq: Rmq, *arguments: str) -> str:
    """Why a command is refused that would have to read what the table lacks."""
    answer = rmq(*arguments, "--json")
    assert (answer.exit_code, answer.json().get("error")) == (1, "DerivedTableDamaged"), answer
    message: str = answer.json()["message"]
    assert "rmq dispatch --rebuild" in message
    return message


def failed_checks(rmq: Rmq) -> list[dict[str, str]]:
    """What ``rmq doctor`` finds."""
    rmq.correct_listeners()
    answer = rmq("doctor", "--json")
    failed = [check for check in answer.json()["checks"] if check["status"] == "failed"]
    assert answer.exit_code == (1 if failed else 0)
    return failed


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_messages_that_only_the_consume_queue_lacks_are_not_lost(imported: Rmq, policy: str) -> None:
    settings = imported.folder / "consumers.toml"
    settings.write_text(settings.read_text().replace('engine = "auto"', f'on_offset_out_of_range = "{policy}"'))
    drop_rows(imported.root, OF_ORDERS)
    assert "[0, " in (message := refused(imported, *CONSUME))
    assert "OrderEvents" in message
    assert "Nothing is lost" in message
    assert imported.json("sql", "SELECT * FROM windows") == []
    imported.json("dispatch", "--rebuild")
    (window,) = imported.json(*CONSUME)["windows"]
    assert window["status"] == "committed"
    assert imported.json("sql", "SELECT * FROM outcomes WHERE outcome = 'lost'") == []
    assert imported.json("audit")["audit"] == []


@pytest.mark.parametrize(
    "command",
    [
        (
            "replay",
            "--group",
            "orders",
            "--topic",
            "OrderEvents",
            "--from",
            "2020-01-01T00:00:00Z",
            "--engine",
            "local",
        ),
        (
            "reset",
            "--group",
            "orders",
            "--topic",
            "OrderEvents",
            "--to-time",
            "2026-01-01T00:00:00Z",
            "--reason",
            "test",
        ),
        ("print", "--topic", "OrderEvents"),
    ],
    ids=lambda command: command[0],
)
def test_whoever_reads_a_queue_is_told_what_its_consume_queue_lacks(imported: Rmq, command: tuple[str, ...]) -> None:
    imported.json(*CONSUME)
    drop_rows(imported.root, OF_ORDERS)
    assert "OrderEvents" in refused(imported, *command)
    imported.json("dispatch", "--rebuild")
    imported.json(*command)


def test_a_delivery_does_not_pass_over_retries_that_the_consume_queue_lacks(imported: Rmq) -> None:
    imported.json(*CONSUME)
    drop_rows(imported.root, "topic = 'SCHEDULE_TOPIC_XXXX' AND broker_name LIKE 'lake-%'")
    assert "SCHEDULE_TOPIC_XXXX" in refused(imported, "deliver", "--now", ALL_DUE)
    imported.json("dispatch", "--rebuild")
    assert imported.json("deliver", "--now", ALL_DUE)["delivered"]


def test_a_redrive_does_not_pass_over_letters_that_the_consume_queue_lacks(
    hand: Bench, rmq: Rmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RMQ_ROOT", hand.shard.root.location)
    hand.window("shop", QUEUE, 0, 10, start_rule="first", dead=[3])
    dispatch(hand.shard, hand.host)
    drop_rows(Path(hand.shard.root.location), "topic LIKE '%DLQ%'")
    redrive = ("redrive", "--group", "shop", "--all", "--reason", "test")
    assert "%DLQ%shop" in refused(rmq, *redrive)
    rmq.json("dispatch", "--rebuild")
    assert rmq.json(*redrive)["letters"] == 1


# --- a log that was restored from a backup ---------------------------------------------------------------------------


def entries(rmq: Rmq) -> list[Path]:
    """The versions of the commit log."""
    return sorted((rmq.root / "broker-a" / "commitlog" / "_delta_log").glob("*.json"))


def entry_of(log: Path, number: int) -> Path:
    return sorted(log.glob("*.json"))[number]


def send(rmq: Rmq, body: str) -> None:
    rmq.json("send", "--topic", "OrderEvents", "--create", body)


@pytest.fixture
def rolled_back(imported: Rmq) -> Rmq:
    """The commit log lacks its last two versions, a claim and a window; the derived tables have them."""
    shard = shard_of(imported)
    imported.json(*CONSUME)
    doubled(shard, COMMITS)
    for entry in entries(imported)[-2:]:
        entry.unlink()
    return imported


def assert_mended_by_a_rebuild(rmq: Rmq) -> None:
    check = rmq("dispatch", "--check", "--json")
    assert (check.exit_code, check.json()["status"]) == (1, "differs")
    assert all("restored from a backup" in table["damage"] for table in check.json()["tables"])
    not_in_log = [table["not_in_log"] for table in check.json()["tables"]]
    assert all(not_in_log), "the claim and the window of before"
    assert "that are not in the commit log" in check.err
    rebuilt = rmq("dispatch", "--rebuild", "--json")
    assert [table["not_in_log"] for table in rebuilt.json()["tables"]] == not_in_log
    assert rebuilt.err.count("that are not in the commit log") == 3
    assert rmq.json("dispatch", "--check")["status"] == "ok"
    (window,) = rmq.json(*CONSUME)["windows"]
    assert window["status"] == "committed"
    send(rmq, "after")
    assert rmq.json("audit")["audit"] == []
    assert rmq.json("dispatch", "--check")["status"] == "ok"


@pytest.mark.parametrize(
    "command",
    [
        CONSUME,
        ("send", "--topic", "OrderEvents", "--create", "x"),
        RESET,
        ("dispatch",),
        ("dispatch", "--dry-run"),
        ("audit", "--group", "orders"),
    ],
    ids=lambda c: " ".join(c[:2]),
)
def test_a_cursor_beyond_the_log_is_refused(rolled_back: Rmq, command: tuple[str, ...]) -> None:
    newest = int(entries(rolled_back)[-1].stem)
    message = refused(rolled_back, *command)
    assert "broker-a/co" in message
    assert f"up to version {newest + 2}" in message
    assert "Nothing is lost" not in message
    assert "restore its newer state first" in message
    assert f"newest version is {newest}" in message  # also a window has not claimed anything
    assert rolled_back.json("dispatch", "--rebuild")["status"] == "done"
    assert rolled_back.json("sql", "SELECT * FROM windows") == []


def test_a_rebuild_mends_a_cursor_beyond_the_log(rolled_back: Rmq) -> None:
    assert_mended_by_a_rebuild(rolled_back)


def test_a_log_with_other_commits_under_the_same_versions_is_refused_and_mended(rolled_back: Rmq) -> None:
    """Who sends without the derived tables has committed, and goes on until the log is longer than it was."""
    for n in range(3):
        bench = Bench(shard_of(rolled_back))
        bench.move("other", MessageQueue("OrderEvents", "broker-a", 0), n - 1 if n else None, n)
    newest = int(entries(rolled_back)[-1].stem)
    for command in (("dispatch",), ("sql", "SELECT * FROM audit"), CONSUME):
        message = refused(rolled_back, *command)
        assert f"up to version {newest - 1}" in message
        assert f"at its version {newest}" in message
        assert "restore the store from a backup" in message
        assert "If the commit log is the older" not in message
    assert_not_advised_to_rebuild(rolled_back)
    assert_mended_by_a_rebuild(rolled_back)


def assert_not_advised_to_rebuild(rmq: Rmq) -> None:
    """The tables may have the only record of what the log lacks."""
    (failed,) = failed_checks(rmq)
    assert failed["check"] == "commit log"
    assert "restore it from a backup; a rebuild of the derived tables would only hide it" in failed["mend"]
    answer = rmq("audit", "--json").json()
    assert "log rolled back" not in {row["problem"] for row in answer["audit"]}
    (advice,) = (one for one in answer["advice"] if one["problem"] == "log of another history")
    assert "do not rebuild" in advice["action"]
    assert "rmq dispatch --rebuild" not in advice["action"]
    check = rmq("dispatch", "--check").out
    assert "restore the store from a backup (docs/backup.md)" in check
    assert "rebuild it with" not in check


def test_what_a_log_says_whose_newest_entry_is_gone_is_refused(imported: Rmq) -> None:
    """``commits`` is not behind it: it gets no rows so soon."""
    imported.json(*CONSUME)
    newest = entries(imported)[-1]
    newest.unlink()
    exported = imported.folder / "consumerOffset.json"
    for command in (
        ("audit", "--group", "orders"),
        ("sql", "SELECT * FROM audit"),
        ("sql", "SELECT * FROM stored_offsets"),
        ("lag",),
        ("lag", "--group", "orders"),
        ("progress", "--group", "orders"),
        ("topics",),
        ("topic-status", "--topic", "OrderEvents"),
        ("groups",),
        ("offsets", "export", "--broker", "broker-a", str(exported)),
        ("maintain", "--dry-run"),
        ("maintain",),
    ):
        message = refused(imported, *command)
        assert f"its newest version is {int(newest.stem) - 1}: one of them was restored from a backup" in message, (
            command
        )
    assert not exported.exists()


def test_doctor_names_a_log_whose_newest_entry_is_gone(imported: Rmq) -> None:
    imported.json(*CONSUME)
    newest = entries(imported)[-1]
    content = newest.read_bytes()
    newest.unlink()
    (failed,) = failed_checks(imported)
    assert failed["check"] == "commit log"
    assert f"its newest version is {int(newest.stem) - 1}: one of them was restored from a backup" in failed["found"]
    assert "restore" in failed["mend"]
    assert "rmq dispatch --rebuild" in failed["mend"]
    newest.write_bytes(content)
    assert failed_checks(imported) == []


def cut(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda log: cut(entry_of(log, -1)), "is damaged"),
        (lambda log: entry_of(log, 1).unlink(), "is missing, and later entries are there"),
        (lambda log: shutil.rmtree(log.parent), "the shard's commit log is gone"),
    ],
    ids=["cut", "hole", "gone"],
)
def test_doctor_calls_a_damaged_log_by_its_name(imported: Rmq, damage: Callable[[Path], None], words: str) -> None:
    imported.json(*CONSUME)
    damage(imported.root / "broker-a" / "commitlog" / "_delta_log")
    (failed,) = failed_checks(imported)
    assert failed["check"] == "commit log"
    assert words in failed["found"]
    assert "from a backup" in failed["mend"]


def test_doctor_calls_a_damaged_derived_table_by_its_name(imported: Rmq) -> None:
    shutil.rmtree(imported.root / "broker-a" / "offsets")
    (failed,) = failed_checks(imported)
    assert failed["check"] == "derived tables"
    assert "broker-a/offsets is gone" in failed["found"]
    assert failed["mend"] == "run 'rmq dispatch --rebuild'"
    imported.json("dispatch", "--rebuild")
    assert failed_checks(imported) == []


def test_a_derived_table_that_records_no_commit_is_accepted(hand: Bench) -> None:
    hand.window("shop", QUEUE, 0, 4, start_rule="first", dead=[3])
    shard = hand.shard
    for kind in KINDS:
        recorded = cursor_positions(shard)
        del recorded[COMMIT]
        kind.table(shard).put(staged(shard, kind, Tail(shard.ctls_since(0)), hand.host), recorded, host=hand.host)
        kind.table(shard).refresh()
    hand.window("shop", QUEUE, 4, 5, dead=[4])
    assert dispatch(shard, hand.host)
    assert [report.differs for report in check(Shard(shard.root, shard.name))] == [False] * 3


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@pytest.mark.parametrize("behind", [False, True])
def test_a_cursor_that_counts_other_commits_is_named_and_mended(imported: Rmq, kind: Derived, behind: bool) -> None:
    """A dispatch behind a cursor whose entries were cleaned away would take a commit less, and not see it."""
    imported.json(*CONSUME)
    shard = shard_of(imported)
    dispatch(shard, Host(), every_commit=True)
    recorded = commits_at_cursor(kind.table(shard)) or 0
    kind.table(shard).put((), {NUMBER_OF_COMMITS: recorded + 1}, host=Host())
    if behind:
        Bench(shard).move("other", MessageQueue("OrderEvents", "broker-a", 0), None, 1)
    audit = imported("audit", "--json").json()["audit"]
    assert [(row["problem"], row["file"]) for row in audit] == [("derived table differs", kind.name)]
    words = f"the cursor of broker-a/{kind.name} counts {recorded + 1} commits"
    assert words in audit[0]["detail"]
    damages = [table["damage"] for table in imported("dispatch", "--check", "--json").json()["tables"]]
    assert [words in damage for damage in damages] == [one is kind for one in KINDS]
    imported.json("dispatch", "--rebuild")
    assert imported.json("dispatch", "--check")["status"] == "ok"
    assert imported.json("audit")["audit"] == []


@pytest.mark.parametrize("cleaned", [False, True])
def test_a_table_that_others_brought_further_than_our_handle_of_the_log_is_accepted(hand: Bench, cleaned: bool) -> None:
    dispatch(hand.shard, hand.host)
    other = Bench(Shard(hand.shard.root, hand.shard.name))
    for begin in (0, 4):
        other.window("shop", QUEUE, begin, begin + 4, start_rule="stored" if begin else "first", dead=[begin])
        dispatch(other.shard, other.host)
    if cleaned:
        other.window("shop", QUEUE, 8, 9)
        clean_log(other.shard.commitlog)
    hand.shard.consumequeue.refresh()
    assert undispatched(hand.shard, hand.shard.consumequeue).ctls == ()


def test_the_log_is_asked_only_where_there_is_a_hole(imported: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def noted(*arguments: object) -> list[object]:
        asked.append(arguments)
        return []

    monkeypatch.setattr("rmq_store.lake.commit.holes.produced_in_log", noted)
    imported.json(*CONSUME)
    imported.json("deliver", "--now", ALL_DUE)
    assert asked == []


def test_a_rebuild_to_no_rows_is_not_done_before_they_are_gone(
    rolled_back: Rmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The restored log has no move of an offset, and the first write of the table is not answered."""
    silent: list[Put] = []

    def answer(put: Put) -> None:
        if put.table.endswith("/offsets") and not silent:
            silent.append(put)
            raise NoAnswer("silence")
        put.send()

    answer_puts(monkeypatch, answer)
    rolled_back.json("dispatch", "--rebuild")
    assert silent
    assert rolled_back.json("dispatch", "--check")["status"] == "ok"


# --- files that are gone ---------------------------------------------------------------------------------------------


@pytest.fixture
def consumed(imported: Rmq) -> Rmq:
    """Imported, and a window whose retries wait; ``commits`` has a file."""
    imported.json(*CONSUME)
    doubled(shard_of(imported), COMMITS)
    imported.json("dispatch", "--rebuild")
    return imported


def lose_the_folder(table: Path) -> None:
    shutil.rmtree(table)


def lose_the_log(table: Path) -> None:
    shutil.rmtree(table / "_delta_log")


def lose_a_file(table: Path) -> None:
    next(table.rglob("*.parquet")).unlink()


def empty_a_file(table: Path) -> None:
    next(table.rglob("*.parquet")).write_bytes(b"")


def as_fifo(file: Path) -> None:
    file.unlink()
    os.mkfifo(file)


@pytest.mark.parametrize(
    ("name", "lose"),
    [
        ("consumequeue", lambda table: as_fifo(next(table.rglob("*.parquet")))),
        ("consumequeue", lose_the_folder),
        ("offsets", lose_the_folder),
        ("commits", lose_the_folder),
        ("consumequeue", lose_the_log),
        ("offsets", empty_a_file),
        ("commits", lose_a_file),
    ],
)
def test_a_derived_table_of_which_files_are_gone_is_written_again(
    consumed: Rmq, name: str, lose: Callable[[Path], None]
) -> None:
    windows = consumed.json("sql", "SELECT * FROM windows")
    lose(consumed.root / "broker-a" / name)
    answer = consumed("dispatch", "--check", "--json")
    assert (answer.exit_code, answer.json()["status"]) == (1, "differs")
    assert [bool(table["damage"]) for table in answer.json()["tables"]] == [one.name == name for one in KINDS]
    assert consumed.json("dispatch", "--rebuild", "--dry-run")["status"] == "dry_run"
    rebuilt = consumed.json("dispatch", "--rebuild")["tables"]
    assert [table["rebuilt"] for table in rebuilt] == [one.name == name for one in KINDS]
    assert consumed.json("dispatch", "--check")["status"] == "ok"
    assert consumed.json("audit")["audit"] == []
    assert consumed.json("sql", "SELECT * FROM windows") == windows
    assert consumed.json("deliver", "--now", ALL_DUE)["delivered"]


@pytest.mark.parametrize("lose", [lose_the_folder, lose_a_file])
@pytest.mark.parametrize("command", [("print", "--topic", "OrderEvents"), CONSUME], ids=lambda c: c[0])
def test_whoever_reads_a_derived_table_whose_files_are_gone_is_told_to_write_it_again(
    imported: Rmq, command: tuple[str, ...], lose: Callable[[Path], None]
) -> None:
    lose(imported.root / "broker-a" / "consumequeue")
    refused(imported, *command)
    assert imported.json("sql", "SELECT * FROM windows") == []


def test_a_commit_whose_derived_tables_are_gone_stands(consumed: Rmq) -> None:
    lose_the_folder(consumed.root / "broker-a" / "offsets")
    assert "dispatch --rebuild" in " ".join(consumed.json(*RESET)["warnings"])
    consumed.json("dispatch", "--rebuild")
    assert consumed.json("audit")["audit"] == []


# --- a derived table whose log is damaged ----------------------------------------------------------------------------


def with_entries(rmq: Rmq, kind: Derived) -> None:
    """Some more entries in its log."""
    shard = shard_of(rmq)
    table = kind.table(shard)
    for _ in range(4):
        shard.commitlog.refresh()
        table.put([], cursor_positions(shard), host=Host())


def cut_the_checkpoint(log: Path) -> None:
    """The entries before it are gone."""
    DeltaTable(str(log.parent)).create_checkpoint()
    (checkpoint,) = log.glob("*.checkpoint.parquet")
    cut(checkpoint)
    for entry in sorted(log.glob("*.json"))[:-1]:
        entry.unlink()


def checkpoint_in_parts(log: Path) -> None:
    """By another tool, which has removed all entries before its end."""
    (log / f"{int(entry_of(log, -1).stem):020d}.checkpoint.0000000001.0000000002.parquet").write_bytes(b"x")
    for entry in log.glob("*.json"):
        entry.unlink()


def wrong_statistics(log: Path) -> None:
    entry = next(entry for entry in sorted(log.glob("*.json"), reverse=True) if '"add"' in entry.read_text())
    text = entry.read_text()
    changed = text.replace(r"\"base_offset\": ", r"\"base_offset\": \"x\", \"was\": ")
    assert changed != text
    entry.write_text(changed)


LOG_DAMAGES = {
    "newest entry": lambda log: cut(entry_of(log, -1)),
    "a FIFO for an entry": lambda log: as_fifo(entry_of(log, -1)),
    "entry gone": lambda log: entry_of(log, 2).unlink(),
    "checkpoint": cut_the_checkpoint,
    "a checkpoint in parts": checkpoint_in_parts,
    "statistics": wrong_statistics,
}


@pytest.mark.parametrize(
    ("damage", "kind"),
    [(damage, kind) for damage in LOG_DAMAGES for kind in ([*KINDS] if damage == "newest entry" else [QUEUES])],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_a_derived_table_whose_log_is_damaged_is_written_again(consumed: Rmq, damage: str, kind: Derived) -> None:
    with_entries(consumed, kind)
    windows = consumed.json("sql", "SELECT * FROM windows")
    kept = kind.table(shard_of(consumed))
    log = consumed.root / "broker-a" / kind.name / "_delta_log"
    LOG_DAMAGES[damage](log)
    newest = max(int(name.name[:20]) for name in log.glob("0*"))
    answer = consumed("dispatch", "--check", "--json")
    damages = {table["table"]: table["damage"] for table in answer.json()["tables"]}
    assert [name for name, text in damages.items() if text] == [kind.name]
    assert "backup" not in damages[kind.name]
    rebuilt = consumed.json("dispatch", "--rebuild")["tables"]
    assert [table["table"] for table in rebuilt if table["rebuilt"]] == [kind.name]
    assert consumed.json("dispatch", "--check")["status"] == "ok"
    assert consumed.json("audit")["audit"] == []
    assert consumed.json("sql", "SELECT * FROM windows") == windows
    assert consumed.json("deliver", "--now", ALL_DUE)["delivered"]
    shard = shard_of(consumed)
    assert kind.table(shard).version > newest
    assert_readers_agree(shard, all_entries=False)
    assert_a_kept_view_agrees(kept)
    consumed.json("maintain")  # what is damaged is still there, behind the new beginning
    assert consumed.json("dispatch", "--check")["status"] == "ok"


def test_whoever_meets_a_damaged_log_of_a_derived_table_is_told_to_write_it_again(imported: Rmq) -> None:
    """Also an import, which makes the tables of its shard where they are missing."""
    cut(entry_of(imported.root / "broker-a" / "offsets" / "_delta_log", 0))
    for command in (CONSUME, ("audit", "--group", "orders")):
        assert "offsets/_delta_log/00000000000000000000.json is damaged" in refused(imported, *command)
    findings = imported("audit", "--json").json()["audit"]
    assert {row["problem"] for row in findings} >= {"derived table differs", "not audited"}
    with pytest.raises(DerivedTableDamaged, match="rmq dispatch --rebuild"):
        LakeStore.open(Root.parse(str(imported.root))).create_shard("broker-a")


@pytest.mark.slow
def test_two_rebuilds_of_a_damaged_log_end_with_one_table(consumed: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one lists the log before the first one has written, and creates its entry afterwards."""
    with_entries(consumed, QUEUES)
    cut(entry_of(consumed.root / "broker-a" / "consumequeue" / "_delta_log", 1))
    real, others = Root.create_exclusively, list[object]()

    def create(root: Root, name: str, content: bytes) -> bool:
        if not others and "consumequeue/_delta_log" in name:
            others.append(name)
            consumed.json("dispatch", "--rebuild")
        return real(root, name, content)

    monkeypatch.setattr(Root, "create_exclusively", create)
    consumed.json("dispatch", "--rebuild")
    assert others
    assert consumed.json("dispatch", "--check")["status"] == "ok"
    assert_readers_agree(shard_of(consumed), all_entries=False)


def test_a_dispatcher_that_follows_a_damaged_log_follows_its_rebuild(consumed: Rmq) -> None:
    """It read the entry before that was damaged, and has a commit to dispatch."""
    with_entries(consumed, QUEUES)
    kept = shard_of(consumed)
    dispatch(kept, Host())
    cut(entry_of(consumed.root / "broker-a" / "consumequeue" / "_delta_log", 2))
    consumed.json("dispatch", "--rebuild")
    Bench(kept).move("other", MessageQueue("OrderEvents", "broker-a", 0), None, 3)
    dispatch(kept, Host())
    assert consumed.json("dispatch", "--check")["status"] == "ok"
    assert_a_kept_view_agrees(kept.consumequeue)
