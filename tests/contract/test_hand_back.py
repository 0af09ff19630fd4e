"""A broker that was cut over gets its groups back, runs on, is imported further and cut over again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from rmq_store.lake.commit import commit as committing
from tests.contract.rmq import ALL_DUE, Rmq
from tests.contract.test_diverged_log import LISTENER, SETTINGS, configs_of, delayed, in_t, parsed, table_of
from tests.contract.test_import_store import store_of
from tests.contract.test_queue_generations import with_queues

BROKER = ("--broker", "broker-a")
BACK = ("hand-back", *BROKER, "--reason", "the broker runs again")
CUT_OVER = ("cutover", *BROKER, "--reason", "switched off")


def broker_files(rmq: Rmq, messages: Sequence[dict[str, Any]], offset: int, delay: int) -> str:
    """The broker's store with these messages, the offset of group g in queue 0 of T, and that of delay level 3."""
    shutil.rmtree(rmq.folder / "broker", ignore_errors=True)
    return str(configs_of(store_of(rmq.folder / "broker", *messages), offset, delay))


FIRST = [in_t("c000", 0), in_t("c001", 1), delayed(0, 0), delayed(1, 1)]
"""The broker's group has consumed one message, and none of the delayed ones is delivered."""


@pytest.fixture
def cut_over(rmq: Rmq) -> Rmq:
    """The lake has delivered and consumed all that the broker had."""
    (rmq.folder / "consumers.toml").write_text(SETTINGS)
    (rmq.folder / "cli_listener.py").write_text(LISTENER)
    rmq.json("init")
    rmq.json("import-store", broker_files(rmq, FIRST, 1, 0), *BROKER)
    rmq.json(*CUT_OVER)
    rmq.json("deliver", "--now", ALL_DUE)
    rmq.json("consume", "--group", "g")
    assert consumed(rmq) == ["c001", "d000", "d001"]
    return rmq


def consumed(rmq: Rmq) -> list[str]:
    """All that the group has consumed here, sorted."""
    return sorted((rmq.folder / "bodies.txt").read_text().split())


def stored(rmq: Rmq) -> tuple[int, str]:
    """The group's offset in queue 0 of T, and who has it."""
    (row,) = rmq.json(
        "sql", "SELECT next_offset, held_by FROM stored_offsets WHERE topic = 'T' AND broker_name = 'broker-a'"
    )
    return row["next_offset"], row["held_by"]


def exported(rmq: Rmq) -> tuple[Any, Any]:
    """The offset of the group and that of delay level 3, as the export writes them into the broker's files."""
    file = Path(broker_files(rmq, FIRST, 1, 0)) / "config" / "consumerOffset.json"
    rmq.json("offsets", "export", *BROKER, "--merge", str(file))
    return table_of(rmq, "broker-a"), parsed(file.with_name("delayOffset.json").read_text())


@pytest.mark.slow
def test_each_message_is_consumed_once_by_the_lake_the_broker_and_the_lake(cut_over: Rmq) -> None:
    assert exported(cut_over) == ({"T@g": {0: 2}}, {"3": 2})
    assert cut_over.json(*BACK)["groups"] == 1
    assert exported(cut_over) == ({"T@g": {0: 2}}, {"3": 2})
    # The broker consumes c002 and delivers d002 to itself; c003 and d003 wait there.
    more = [in_t("c002", 2), delayed(2, 2), in_t("d002", 3, key=2), in_t("c003", 4), delayed(3, 3)]
    report = cut_over.json("import-store", broker_files(cut_over, [*FIRST, *more], 4, 3), *BROKER)
    assert (report["messages"], report["begin"] > 0) == (5, True)
    assert stored(cut_over) == (4, "broker")
    again = cut_over.json(*CUT_OVER)
    assert (again["groups"], again["waiting"], again["notes"]) == (1, 1, [])
    assert cut_over.json("deliver", "--now", ALL_DUE)["delivered"] == 1
    cut_over.json("consume", "--group", "g")
    assert consumed(cut_over) == ["c001", "c003", "d000", "d001", "d003"]
    assert exported(cut_over) == ({"T@g": {0: 5}}, {"3": 4})
    assert cut_over.json("audit")["audit"] == []


@pytest.mark.parametrize("imports", [1, 3])
def test_a_group_that_the_broker_never_had_goes_on_where_it_was(cut_over: Rmq, imports: int) -> None:
    """Also if the exported offsets were not installed at the broker, whose files then lack the group."""
    settings = cut_over.folder / "consumers.toml"
    settings.write_text(SETTINGS + SETTINGS.replace('name = "g"', 'name = "only-here"'))
    cut_over.json("consume", "--group", "only-here")
    assert cut_over.json(*BACK)["groups"] == 2
    before = consumed(cut_over)
    for number in range(imports):
        more = [in_t(f"e{n:03}", 2 + n) for n in range(number + 1)]
        report = cut_over.json("import-store", broker_files(cut_over, [*FIRST, *more], 2, 2), *BROKER)
        assert any("handed back: only-here." in note for note in report["notes"])
    offsets = (
        "SELECT next_offset, held_by FROM stored_offsets WHERE group_name = 'only-here' AND broker_name = 'broker-a'"
    )
    assert cut_over.json("sql", offsets) == [{"next_offset": 2, "held_by": "broker"}]
    assert cut_over.json(*CUT_OVER)["groups"] == 2
    cut_over.json("consume", "--group", "only-here")
    assert consumed(cut_over) == sorted([*before, *(f"e{n:03}" for n in range(imports))])
    assert cut_over.json("audit")["audit"] == []


def test_a_broadcasting_client_keeps_its_offsets_here(cut_over: Rmq) -> None:
    """As those of RocketMQ's clients: they are in a file of the client (``LocalFileOffsetStore``), and no broker has them."""
    settings, client = cut_over.folder / "consumers.toml", "all@host-1"
    to_all = SETTINGS.replace('name = "g"', 'name = "all"\nmessage_model = "BROADCASTING"')
    settings.write_text(SETTINGS + to_all)
    assert cut_over.json("consume", "--group", client)["messages"] == 4
    before = consumed(cut_over)
    file = Path(broker_files(cut_over, FIRST, 1, 0)) / "config" / "consumerOffset.json"
    export = cut_over("offsets", "export", *BROKER, "--merge", str(file))
    assert set(parsed(file.read_text())) == {"T@g"}
    note = "note: the offsets of broadcasting clients stay here, as no broker has them: all@host-1"
    assert note in export.err
    dry = cut_over.json(*BACK, "--dry-run")
    assert (dry["groups"], cut_over.json(*BACK)["groups"]) == (1, 1)
    report = cut_over.json("import-store", broker_files(cut_over, [*FIRST, in_t("e000", 2)], 2, 2), *BROKER)
    assert not [note for note in report["notes"] if "handed back" in note]
    assert cut_over.json(*CUT_OVER)["notes"] == []
    assert cut_over.json("consume", "--group", client)["messages"] == 1
    assert consumed(cut_over) == sorted([*before, "e000"])
    assert cut_over.json("audit")["audit"] == []


def test_an_import_says_that_the_broker_has_delivered_less_than_it_was_given_back(cut_over: Rmq) -> None:
    """As where nobody has installed the export: the broker delivers again what was delivered here."""
    cut_over.json(*BACK)
    for delay, count in ((0, 2), (1, 1), (2, 0), (3, 0)):
        more = [in_t("e000", 2), delayed(2, 2)]
        report = cut_over.json("import-store", broker_files(cut_over, [*FIRST, *more], 2, delay), *BROKER)
        older = [note for note in report["notes"] if "delayOffset.json" in note]
        assert [f"of delay levels 3 ({count} to deliver again)" in note for note in older] == [True] * bool(count)


def test_an_import_says_that_the_broker_has_older_offsets_than_it_was_given_back(cut_over: Rmq) -> None:
    """As where nobody has installed the export: the broker consumes messages again, and so would a window here."""
    cut_over.json(*BACK)
    for offset, is_older in ((1, True), (1, True), (2, False), (3, False)):
        report = cut_over.json("import-store", broker_files(cut_over, [*FIRST, in_t("e000", 2)], offset, 2), *BROKER)
        older = [note for note in report["notes"] if "older offsets" in note]
        assert ["given back: g (1 to consume again)" in note for note in older] == [True] * is_older
        assert stored(cut_over) == (offset, "broker")


@pytest.mark.parametrize("consumed_there", [0, 1])
def test_a_group_that_the_broker_has_deleted_is_gone_once_an_import_has_seen_it_there(
    cut_over: Rmq, consumed_there: int
) -> None:
    """Only an offset beyond the one that was handed back shows that the exported file was installed."""
    cut_over.json(*BACK)
    folder = with_queues(Path(broker_files(cut_over, [*FIRST, in_t("e000", 2)], 2 + consumed_there, 2)), 0)
    cut_over.json("import-store", str(folder), *BROKER)
    offsets = folder / "config" / "consumerOffset.json"
    offsets.write_text(offsets.read_text().replace("T@g", "T@other"))
    for _ in range(2):
        report = cut_over.json("import-store", str(folder), *BROKER)
        lacking = [note for note in report["notes"] if "handed back: g." in note]
        assert len(lacking) == 1 - consumed_there
    cut_over.json(*CUT_OVER)
    groups = "SELECT group_name FROM stored_offsets WHERE topic = 'T' AND broker_name = 'broker-a' ORDER BY 1"
    assert [row["group_name"] for row in cut_over.json("sql", groups)] == (
        ["other"] if consumed_there else ["g", "other"]
    )
    assert cut_over.json("audit")["audit"] == []


@pytest.mark.slow
def test_a_broker_may_be_handed_back_several_times(cut_over: Rmq) -> None:
    messages = [*FIRST]
    for number in range(2, 5):
        cut_over.json(*BACK)
        messages.append(in_t(f"c{number:03}", number))
        cut_over.json("import-store", broker_files(cut_over, messages, number, 2), *BROKER)
        cut_over.json(*CUT_OVER)
        cut_over.json("deliver", "--now", ALL_DUE)
        cut_over.json("consume", "--group", "g")
    assert consumed(cut_over) == ["c001", "c002", "c003", "c004", "d000", "d001"]
    assert cut_over.json("audit")["audit"] == []


def test_after_a_hand_back_the_lake_delivers_nothing_of_the_broker(cut_over: Rmq) -> None:
    cut_over.json(*BACK)
    more = [delayed(2, 2), in_t("c002", 2)]
    cut_over.json("import-store", broker_files(cut_over, [*FIRST, *more], 2, 2), *BROKER)
    assert cut_over.json("deliver", "--now", ALL_DUE)["delivered"] == 0
    cut_over.json("consume", "--group", "g")  # begins where the broker has the group
    assert consumed(cut_over) == ["c001", "c002", "d000", "d001"]


def test_what_was_delivered_here_stays_delivered_when_the_broker_got_no_new_delay_offsets(cut_over: Rmq) -> None:
    cut_over.json(*BACK)
    cut_over.json("import-store", broker_files(cut_over, FIRST, 2, 0), *BROKER)
    assert cut_over.json(*CUT_OVER)["waiting"] == 0
    assert cut_over.json("deliver", "--now", ALL_DUE)["delivered"] == 0


def test_a_hand_back_is_done_once_and_says_what_it_did(cut_over: Rmq) -> None:
    tried = cut_over.json("hand-back", *BROKER, "--dry-run")
    assert (tried["status"], tried["groups"]) == ("dry_run", 1)
    assert "needs a reason" in cut_over("hand-back", *BROKER).err
    done = cut_over.json(*BACK)
    assert (done["status"], done["shard"], done["groups"], done["kept"]) == ("committed", "broker-a", 1, [])
    again = cut_over.json(*BACK, "--request", done["request_id"])
    assert again == done | {"status": "already_committed", "warnings": []}
    other = cut_over(*BACK)
    assert (other.exit_code, "broker-a is not cut over to shard broker-a" in other.err) == (2, True)
    history = "SELECT action, from_offset, to_offset, reason FROM offset_history WHERE action = 'hand_back'"
    rows = cut_over.json("sql", f"{history} AND group_name = 'g'")
    assert [(row["from_offset"], row["reason"]) for row in rows] == [(2, "the broker runs again")]


def test_a_cut_over_after_a_hand_back_is_another_one(cut_over: Rmq) -> None:
    cut_over.json(*BACK)
    done = cut_over.json(*CUT_OVER)
    assert done["status"] == "committed"
    another = cut_over(*CUT_OVER)
    assert (another.exit_code, f"was cut over by request {done['request_id']}" in another.err) == (2, True)


def test_offsets_of_a_group_that_was_deleted_here_stay_here(cut_over: Rmq) -> None:
    cut_over.json("delete-group", "--group", "g", "--reason", "not used")
    cut_over.json("consume", "--group", "g")
    assert cut_over.json(*BACK)["kept"] == ["g"]
    assert stored(cut_over) == (2, "lake")


def test_a_group_that_was_deleted_here_and_has_consumed_nothing_since_is_named(cut_over: Rmq) -> None:
    """The broker has its offsets, and they do not count here."""
    cut_over.json("delete-group", "--group", "g", "--reason", "not used")
    assert cut_over.json(*BACK, "--dry-run")["kept"] == ["g"]
    assert "group g was deleted in this store" in cut_over(*BACK).err


class Killed(BaseException):
    pass


@pytest.mark.parametrize("step", ["4.ctl-written", "5.put"])
def test_a_kill_at_any_step_and_a_rerun_end_the_same(cut_over: Rmq, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    def dies(reached: str) -> None:
        if reached == step:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(committing, "on_step", dies)
        assert "Killed" in cut_over(*BACK, "--request", "2026-01-01-back").err
    assert cut_over.json(*BACK, "--request", "2026-01-01-back")["groups"] == 1
    assert exported(cut_over) == ({"T@g": {0: 2}}, {"3": 2})
    assert cut_over.json("audit")["audit"] == []


def during(step: str, happens: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Something happens when the next job reaches a step, once. Returns what came of it, as soon as there is something."""
    answers: list[object] = []

    def reached(name: str) -> None:
        if name == step:
            monkeypatch.setattr(committing, "on_step", lambda _: None)
            answers.append(happens())

    monkeypatch.setattr(committing, "on_step", reached)
    return answers


def test_a_window_that_runs_during_a_hand_back_cannot_commit(cut_over: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    cut_over.json("reset", "--group", "g", "--topic", "T", "--to-min", "--reason", "again")
    during("3.staged", lambda: cut_over.json(*BACK), monkeypatch)
    answer = cut_over("consume", "--group", "g")
    assert (answer.exit_code, "Moved by hand_back" in answer.err) == (3, True)
    assert cut_over.json("audit")["audit"] == []


def test_a_hand_back_that_a_window_overtakes_hands_back_nothing(cut_over: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    """The broker would get the offset of before, and deliver these messages once more."""
    cut_over.json("reset", "--group", "g", "--topic", "T", "--to-min", "--reason", "again")
    during("4.decided", lambda: cut_over.json("consume", "--group", "g"), monkeypatch)
    answer = cut_over(*BACK)
    assert (answer.exit_code, "off/g/T/broker-a/0 was 0 and is 2. Moved by consume" in answer.err) == (3, True)
    assert stored(cut_over)[0] == 2
    assert cut_over.json(*BACK)["groups"] == 1
    assert exported(cut_over)[0] == {"T@g": {0: 2}}


def test_a_first_window_of_the_brokers_retries_cannot_commit_after_a_hand_back(
    rmq: Rmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The group has no offset yet that the hand-back would delete."""
    (rmq.folder / "consumers.toml").write_text(SETTINGS)
    (rmq.folder / "cli_listener.py").write_text(LISTENER)
    retry = {"topic": "%RETRY%g", "queue_id": 0, "queue_offset": 0, "stored_body": b"r000"}
    rmq.json("init")
    rmq.json("import-store", str(store_of(rmq.folder / "broker", in_t("c000", 0), retry)), *BROKER)
    rmq.json(*CUT_OVER)
    during("3.staged", lambda: rmq.json(*BACK), monkeypatch)
    answer = rmq("consume", "--group", "g")
    assert (answer.exit_code, "Moved by hand_back" in answer.err) == (3, True)
    assert rmq.json("sql", "SELECT * FROM stored_offsets WHERE held_by = 'lake'") == []
    assert rmq.json("audit")["audit"] == []


def test_a_hand_back_is_overtaken_by_a_client_that_begins_a_queue(
    cut_over: Rmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the group would keep the offset here, and the next cut-over would not adopt what the broker has."""
    cut_over.json(*BACK)
    more = [*FIRST, in_t("c002", 2), {**in_t("e000", 0), "queue_id": 1}]
    cut_over.json("import-store", broker_files(cut_over, more, 2, 2), *BROKER)
    cut_over.json(*CUT_OVER)
    clients = ("--client", "c2", "--clients", "c1,c2,c3")
    during("4.decided", lambda: cut_over.json("consume", "--group", "g", *clients), monkeypatch)
    answer = cut_over(*BACK)
    assert (answer.exit_code, "off/g/T/broker-a/1 was None and is 1" in answer.err) == (3, True)
    cut_over.json(*BACK)
    offsets = "SELECT * FROM stored_offsets WHERE broker_name = 'broker-a' AND held_by = 'lake'"
    assert cut_over.json("sql", offsets) == []
    assert cut_over.json("audit")["audit"] == []


@pytest.mark.parametrize("step", ["1.planned", "2.claimed", "3.staged"])
def test_a_delivery_that_runs_during_a_hand_back_cannot_commit(
    rmq: Rmq, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Nothing of the level was delivered before, so the level has no offset that the hand-back would delete."""
    rmq.json("init")
    files = store_of(rmq.folder / "broker", in_t("c000", 0), delayed(0, 0))
    rmq.json("import-store", str(files), *BROKER)
    rmq.json(*CUT_OVER)
    reports = during(step, lambda: rmq.json(*BACK), monkeypatch)
    rmq("deliver", "--now", ALL_DUE)
    assert reports
    assert rmq.json("sql", "SELECT count(*) AS n FROM messages WHERE broker_name LIKE 'lake-%'") == [{"n": 0}]
    assert rmq.json("audit")["audit"] == []


def test_the_names_of_a_log_that_lost_its_end_are_handed_back_together(rmq: Rmq) -> None:
    (rmq.folder / "consumers.toml").write_text(SETTINGS)
    (rmq.folder / "cli_listener.py").write_text(LISTENER)
    rmq.json("init")
    rmq.json("import-store", broker_files(rmq, [in_t(f"o{n:03}", n) for n in range(4)], 1, 0), *BROKER)
    newer = [in_t("o000", 0), in_t("o001", 1), *(in_t(f"n{n:03}", n) for n in range(2, 5))]
    continued = ("--continue-as", "broker-a-2", "--reason", "the disk was replaced")
    rmq.json("import-store", broker_files(rmq, newer, 1, 0), *BROKER, *continued)
    name = ("--broker", "broker-a-2")
    rmq.json("cutover", *name, "--reason", "switched off")
    rmq.json("consume", "--group", "g")
    refused = rmq(*BACK)
    assert (refused.exit_code, "goes on as broker broker-a-2: use that name" in refused.err) == (2, True)
    assert rmq.json("hand-back", *name, "--reason", "the broker runs again")["groups"] == 1
    assert table_of(rmq) == {"T@g": {0: 5}}
    newer += [in_t(f"n{n:03}", n) for n in range(5, 8)]
    for is_installed in (False, True):
        files = broker_files(rmq, newer, 6, 0)
        if not is_installed:
            (Path(files) / "config" / "consumerOffset.json").write_text('{"offsetTable":{}}')
        notes = rmq.json("import-store", files, *name, "--shard", "broker-a")["notes"]
        assert any("handed back: g." in note for note in notes) is not is_installed
    rmq.json("cutover", *name, "--reason", "switched off")
    rmq.json("consume", "--group", "g")
    assert consumed(rmq) == sorted(["o001", "o002", "o003", *(f"n{n:03}" for n in (2, 3, 4, 6, 7))])
    assert rmq.json("audit")["audit"] == []


def test_what_was_handed_back_counts_under_the_name_that_continues_the_log(cut_over: Rmq) -> None:
    """The broker had not installed the exported file when it lost the last message."""
    cut_over.json(*BACK)
    newer = [*FIRST[:3], in_t("n002", 2)]
    continued = ("--continue-as", "broker-a-2", "--reason", "the disk was replaced")
    name = ("--broker", "broker-a-2")
    for messages, options in (
        (newer, (*BROKER, *continued)),
        ([*newer, in_t("n003", 3)], (*name, "--shard", "broker-a")),
    ):
        files = broker_files(cut_over, messages, 1, 0)
        (Path(files) / "config" / "consumerOffset.json").write_text('{"offsetTable":{}}')
        report = cut_over.json("import-store", files, *options)
        assert any("handed back: g." in note for note in report["notes"])
    done = cut_over.json("cutover", *name, "--reason", "switched off")
    assert (done["waiting"], done["notes"]) == (0, [])
    cut_over.json("consume", "--group", "g")
    assert consumed(cut_over) == ["c001", "d000", "d001", "n002", "n003"]


# --- what waits here before a hand-back ---------------------------------------------------------------------------------

FAILING = """
def keep(msgs, context):
    with open("bodies.txt", "a") as file:
        file.writelines(f"{m.body.decode()} " for m in msgs)
    return "RECONSUME_LATER" if context_of(msgs) else "CONSUME_SUCCESS"


def context_of(msgs):
    return [m for m in msgs if m.reconsume_times < 2]
"""


def test_retries_are_consumed_to_the_last_one_without_a_new_message(rmq: Rmq) -> None:
    (rmq.folder / "consumers.toml").write_text(SETTINGS)
    (rmq.folder / "cli_listener.py").write_text(FAILING)
    rmq.json("init")
    rmq.json("import-store", broker_files(rmq, [in_t(f"c{n:03}", n) for n in range(9)], 0, 0), *BROKER)
    rmq.json(*CUT_OVER)
    rmq.json("consume", "--group", "g", "--max-messages", "3")
    rounds = 0
    while rmq.json("offsets", "export", *BROKER)["waiting_retries"]:
        assert "rmq consume --group g --retries-only" in rmq("offsets", "export", *BROKER).err
        rmq.json("deliver", "--now", ALL_DUE)
        rmq.json("consume", "--group", "g", "--retries-only")
        rounds += 1
    assert (rounds, table_of(rmq, "broker-a")) == (2, {"T@g": {0: 3}})
    assert consumed(rmq) == sorted(["c000", "c001", "c002"] * 3)
    assert rmq("consume", "--all", "--retries-only").exit_code == 2
    assert rmq.json("audit")["audit"] == []


def test_a_first_window_of_retries_only_chooses_where_the_group_begins_its_topics(rmq: Rmq) -> None:
    settings = SETTINGS.replace("CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_LAST_OFFSET")
    (rmq.folder / "consumers.toml").write_text(settings)
    (rmq.folder / "cli_listener.py").write_text(LISTENER)
    retry = {"topic": "%RETRY%g", "queue_id": 0, "queue_offset": 0, "stored_body": b"r000"}
    rmq.json("init")
    rmq.json("import-store", str(store_of(rmq.folder / "broker", in_t("c000", 0), in_t("c001", 1), retry)), *BROKER)
    rmq.json(*CUT_OVER)
    rmq.json("consume", "--group", "g", "--retries-only")
    assert (consumed(rmq), stored(rmq)) == (["r000"], (2, "lake"))
    rmq.json("consume", "--group", "g")
    assert consumed(rmq) == ["r000"]
    assert rmq.json("audit")["audit"] == []


def test_a_cut_over_names_the_groups_that_keep_their_own_offsets(rmq: Rmq) -> None:
    """They have consumed here while the broker had them, from where it had them then."""
    (rmq.folder / "consumers.toml").write_text(SETTINGS)
    (rmq.folder / "cli_listener.py").write_text(LISTENER)
    messages = [in_t(f"c{number:03}", number) for number in range(4)]
    rmq.json("init")
    rmq.json("import-store", broker_files(rmq, messages, 1, 0), *BROKER)
    rmq.json("consume", "--group", "g", "--max-messages", "1")
    rmq.json("import-store", broker_files(rmq, messages, 3, 0), *BROKER)
    note = (
        "group g has offsets of its own here in T, and keeps them: broker-a:0 2 here and 3 at the broker; 'rmq reset' "
        "sets others"
    )
    assert rmq.json(*CUT_OVER, "--dry-run")["notes"] == [note]
    done = rmq.json(*CUT_OVER, "--request", "2026-11-20-cut")
    assert (done["groups"], done["notes"]) == (0, [note])
    assert rmq.json(*CUT_OVER, "--request", "2026-11-20-cut")["notes"] == [note]
    rmq.json("consume", "--group", "g")
    assert consumed(rmq) == ["c001", "c002", "c003"]
    assert rmq.json("audit", "--full")["audit"] == []


def test_a_cut_over_names_the_groups_that_were_deleted_here(rmq: Rmq) -> None:
    (rmq.folder / "consumers.toml").write_text(SETTINGS)
    rmq.json("init")
    rmq.json("import-store", broker_files(rmq, [in_t("c000", 0), in_t("c001", 1)], 1, 0), *BROKER)
    rmq.json("delete-group", "--group", "g", "--reason", "not used")
    (note,) = rmq.json(*CUT_OVER)["notes"]
    assert note == (
        "group g was deleted here: its offsets at the broker do not count in T, and it begins as a new group: broker-a:0 1 at "
        "the broker; 'rmq reset' sets others"
    )
    assert rmq.json("audit", "--full")["audit"] == []


def test_a_queue_that_comes_after_the_first_window_of_topics_is_a_later_one(rmq: Rmq) -> None:
    """Also where the group's first window was one of retries only, and has left the broker's queues to it."""
    settings = SETTINGS.replace("CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_LAST_OFFSET")
    (rmq.folder / "consumers.toml").write_text(settings)
    (rmq.folder / "cli_listener.py").write_text(LISTENER)
    messages = [in_t("c000", 0), DEAD_LETTER]
    later = [in_t(f"n{number:03}", number) | {"queue_id": 1} for number in range(2)]
    rmq.json("init")
    rmq.json("import-store", str(store_of(rmq.folder / "first", *messages)), *BROKER)
    rmq.json("redrive", "--group", "g", "--all", "--reason", "the cause is gone")
    rmq.json("deliver", "--now", ALL_DUE)
    rmq.json("consume", "--group", "g", "--retries-only")
    rmq.json("import-store", str(store_of(rmq.folder / "second", *messages, in_t("c001", 1))), *BROKER)
    rmq.json("consume", "--group", "g")
    assert consumed(rmq) == ["r000"]
    rmq.json("import-store", str(store_of(rmq.folder / "third", *messages, in_t("c001", 1), *later)), *BROKER)
    rmq.json("consume", "--group", "g")
    assert consumed(rmq) == ["n000", "n001", "r000"]


WAITING_RETRY = delayed(0, 0) | {
    "stored_body": b"r000",
    "properties": {"REAL_TOPIC": "%RETRY%g", "REAL_QID": "0", "RETRY_TOPIC": "T", "UNIQ_KEY": "key0", "DELAY": "3"},
}
DEAD_LETTER = {
    "topic": "%DLQ%g",
    "queue_id": 0,
    "queue_offset": 0,
    "stored_body": b"r000",
    "properties": {"RETRY_TOPIC": "T", "DLQ_ORIGIN_TOPIC": "T", "UNIQ_KEY": "key0"},
}


def test_retries_that_a_group_consumes_first_take_no_offset_of_a_broker_that_was_handed_back(rmq: Rmq) -> None:
    (rmq.folder / "consumers.toml").write_text(SETTINGS)
    (rmq.folder / "cli_listener.py").write_text(LISTENER)
    messages = [in_t("c000", 0), in_t("c001", 1), WAITING_RETRY]
    rmq.json("init")
    rmq.json("import-store", broker_files(rmq, messages, 1, 0), *BROKER)
    rmq.json(*CUT_OVER)
    assert rmq.json("deliver", "--now", ALL_DUE)["delivered"] == 1
    rmq.json(*BACK)
    rmq.json("consume", "--group", "g", "--retries-only")
    assert (consumed(rmq), stored(rmq)) == (["r000"], (1, "broker"))
    # The broker's group consumes c001 and c002.
    more = [in_t("c002", 2), in_t("c003", 3)]
    rmq.json("import-store", broker_files(rmq, [*messages, *more], 3, 1), *BROKER)
    assert rmq.json(*CUT_OVER)["groups"] == 1
    rmq.json("consume", "--group", "g")
    assert consumed(rmq) == ["c003", "r000"]
    assert rmq.json("audit")["audit"] == []


@pytest.mark.parametrize(
    ("first", "at_broker", "left"),
    [
        ({"0": 1}, {"0": 2, "1": 1}, ["n001", "n002"]),
        pytest.param({}, {"0": 2, "1": 1}, ["n001", "n002"], id="the broker's group begins the topic later"),
        pytest.param({"0": 1}, {"0": 2}, [], id="the broker has no offset in queue 1: its end, as without retries"),
        pytest.param({}, {}, [], id="the files have no offset of the group: its end, as without retries"),
    ],
)
def test_retries_that_a_group_consumes_first_choose_nothing_where_the_broker_has_the_group(
    rmq: Rmq, first: dict[str, int], at_broker: dict[str, int], left: list[str]
) -> None:
    """At the first import the broker has no offset of the group in queue 1 yet, or none at all."""

    def offsets(files: str, of_group: dict[str, int]) -> str:
        table = {"T@g": of_group} if of_group else {}
        (Path(files) / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": table}))
        return files

    settings = SETTINGS.replace("CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_LAST_OFFSET")
    (rmq.folder / "consumers.toml").write_text(settings)
    (rmq.folder / "cli_listener.py").write_text(LISTENER)
    in_queue_1 = [in_t(f"n{number:03}", number) | {"queue_id": 1} for number in range(3)]
    messages = [in_t("c000", 0), *in_queue_1[:2], DEAD_LETTER]
    rmq.json("init")
    rmq.json("import-store", offsets(broker_files(rmq, messages, 1, 0), first), *BROKER)
    rmq.json("redrive", "--group", "g", "--all", "--reason", "the cause is gone")
    rmq.json("deliver", "--now", ALL_DUE)
    rmq.json("consume", "--group", "g", "--retries-only")
    assert consumed(rmq) == ["r000"]
    more = [in_t("c001", 1), in_queue_1[2]]
    rmq.json("import-store", offsets(broker_files(rmq, [*messages, *more], 2, 0), at_broker), *BROKER)
    assert rmq.json(*CUT_OVER)["groups"] == bool(at_broker)
    rmq.json("consume", "--group", "g")
    assert consumed(rmq) == [*left, "r000"]
    assert rmq.json("audit")["audit"] == []


@pytest.mark.slow
def test_a_real_broker_goes_there_and_back(imported: Rmq, broker_store: Callable[[str], Path]) -> None:
    """All that waits in its delay levels is delivered here: with the exported files nothing of it waits any more."""
    files = Path(shutil.copytree(broker_store("market-clean"), imported.folder / "broker"))
    first = imported.json(*CUT_OVER)
    assert imported.json("deliver", "--now", ALL_DUE)["delivered"] == first["waiting"] > 100
    offsets = str(files / "config" / "consumerOffset.json")
    imported.json("offsets", "export", *BROKER, "--merge", offsets)
    assert imported.json(*BACK)["groups"] == first["groups"]
    assert imported.json("offsets", "export", *BROKER, "--merge", offsets)["changed"] is False
    assert imported.json("import-store", str(files), *BROKER, "--engine", "local")["messages"] == 0
    second = imported.json(*CUT_OVER)
    assert (second["groups"], second["waiting"]) == (first["groups"], 0)
    assert imported.json("audit")["audit"] == []
