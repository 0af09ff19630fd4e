"""The commands about a store and what comes into it: what they do, and what they answer, in text and in JSON."""

from __future__ import annotations

import errno
import re
import shutil
from collections.abc import Callable
from importlib.metadata import requires
from pathlib import Path
from typing import Any

import pytest

from rmq_store.errors import StoreUnusable, WrongUse
from rmq_store.lake.admin import doctor
from rmq_store.lake.table.object_store import Root
from rmq_store.lake.table.request_counter import Kind
from rmq_store.lake.table.shard import Shard
from rmq_store.lake.table.store import LakeStore
from rmq_store.utils.host import Host, epoch_ms
from tests.contract.rmq import ALL_DUE, ORDERS, TODAY, Rmq, lines_of
from tests.contract.test_diverged_log import delayed
from tests.contract.test_queue_generations import broker_of
from tests.faults.folder_faults import Failure, FaultyFolder
from tests.s3 import S3Root


def test_init_makes_a_store_once(rmq: Rmq) -> None:
    made = rmq.json("init")
    assert (made["status"], made["root"]) == ("created", str(rmq.root))
    assert rmq.json("init") == made | {"status": "already_there"}
    assert lines_of(rmq("init").out)["status"] == "already_there"


def test_shards_get_no_other_store_file(rmq: Rmq) -> None:
    """It would have another id, and delay levels that are not theirs."""
    rmq.json("init", "--levels", "1s 2s")
    rmq.json("send", "--topic", "T", "--create", "body")
    content = (rmq.root / "store.json").read_bytes()
    (rmq.root / "store.json").unlink()
    for command in (["init"], ["init", "--levels", "1s 2s"], ["topics"], ["upgrade"]):
        refused = rmq(*command)
        assert (refused.exit_code, "restore it from a backup" in refused.err) == (1, True), command
    (rmq.root / "store.json").write_bytes(content)
    assert rmq.json("init")["status"] == "already_there"


def test_doctor_fixes_a_store_file_by_its_backup(rmq: Rmq) -> None:
    """'rmq init' would make another store, or says that one is there."""
    rmq.json("init")
    rmq.json("send", "--topic", "T", "--create", "body")
    file, entry = rmq.root / "store.json", rmq.root / "shards" / "local.json"
    contents = {path: path.read_bytes() for path in (file, entry)}

    def assert_said(which: str, words: str) -> None:
        (failed,) = [one for one in rmq("doctor", "--json").json()["checks"] if one["check"] == "store"]
        assert (failed["status"], failed["mend"]) == ("failed", f"restore {which} from a backup")
        refused = rmq("topics")
        assert (refused.exit_code, words in refused.err, words in failed["found"]) == (1, True, True), refused

    wrong_level = contents[file].replace(b"10s 30s", b"10s 3q")
    number = re.sub(rb'"levels": "[^"]*"', b'"levels": 5', contents[file])
    no_format = re.sub(rb'"format_version": [0-9]+', b'"format_version": 0', contents[file])
    for content, words in (
        (b"no JSON", "store.json does not describe a store"),
        (wrong_level, "store.json does not describe a store (delay levels '1s 5s 10s 3q "),
        (number, "store.json does not describe a store"),
        (no_format, "store.json does not describe a store (format_version is 0)"),
    ):
        file.write_bytes(content)
        assert_said("store.json", words)
    file.unlink()
    assert_said("store.json", "store.json is gone, but the shards of a store are there")
    entry.unlink()
    assert_said("store.json", "store.json is gone, but the shards of a store are there")
    assert rmq("init").exit_code == 1
    file.write_bytes(contents[file])
    assert_said("shards/local.json", "local: these folders in ")


def test_a_commit_log_that_is_gone_is_not_made_again(rmq: Rmq) -> None:
    """An empty one would be taken for the shard's, and an import would begin from the start."""
    rmq.json("init")
    rmq.json("send", "--topic", "T", "--create", "body")
    shutil.rmtree(rmq.root / "local" / "commitlog")
    store = LakeStore.open(Root.parse(str(rmq.root)))
    with pytest.raises(StoreUnusable, match="Restore it from a backup"):
        store.create_shard("local")
    assert not (rmq.root / "local" / "commitlog").exists()


@pytest.mark.parametrize("others", [(), ("other",)], ids=["the only shard", "beside another"])
def test_a_shard_that_nothing_names_ends_every_command(rmq: Rmq, others: tuple[str, ...]) -> None:
    """Its messages and groups would be left out, and a topic would come into a second shard."""
    rmq.json("init")
    for shard in ("local", *others):
        rmq.json("send", "--topic", f"T-{shard}", "--create", "--shard", shard, "body")
    entry = rmq.root / "shards" / "local.json"
    content = entry.read_bytes()
    entry.unlink()
    before = sorted(rmq.root.rglob("*"))
    for command in (
        ["sql", "select count(*) from messages"],
        ["lag"],
        ["topics"],
        ["groups"],
        ["messages", "--topic", "T-local", "--key", "k"],
        ["consume", "--group", "orders"],
        ["deliver"],
        ["maintain"],
        ["dispatch"],
        ["delete-group", "--group", "orders", "--reason", "gone"],
        ["send", "--topic", "T-local", "--create", "--shard", "new", "body"],
        ["send", "--topic", "T-local", "--create", "--shard", "new", "--dry-run", "body"],
        ["upgrade"],
    ):
        refused = rmq(*command)
        assert (refused.exit_code, "local: these folders in " in refused.err) == (1, True), (command, refused)
    assert sorted(rmq.root.rglob("*")) == before
    (found,) = rmq("audit", "--full", "--json").json()["audit"]
    assert (found["shard"], found["problem"]) == ("local", "shard not named")
    entry.write_bytes(content)
    assert rmq.json("audit")["audit"] == []


def test_a_stray_file_beside_the_entries_is_no_shard(rmq: Rmq) -> None:
    rmq.json("init")
    rmq.json("send", "--topic", "T", "--create", "body")
    names = [".DS_Store", ".local.json.swp", "README.txt", "local.json.bak", "local.json~", "old/b.json"]
    for name in names:
        (rmq.root / "shards" / name).parent.mkdir(exist_ok=True)
        (rmq.root / "shards" / name).write_text("{}")
    assert {queue["shard"] for queue in rmq.json("topic-status", "--topic", "T")["queues"]} == {"local"}
    assert rmq.json("audit")["audit"] == []
    checks = {check["check"]: check for check in rmq("doctor", "--json").json()["checks"]}
    strays = "; ".join(f"shards/{name} is no entry of a shard, and is not read" for name in names)
    assert checks["store"]["status"] == "ok"
    assert checks["store"]["found"].endswith(f"1 shards: local; {strays}")


def test_a_copy_of_another_shards_entry_is_called_that(rmq: Rmq) -> None:
    rmq.json("init")
    rmq.json("send", "--topic", "T", "--create", "body")
    shutil.copy(rmq.root / "shards" / "local.json", rmq.root / "shards" / "other.json")
    refused = rmq("topics")
    assert (refused.exit_code, "other/commitlog: the shard's commit log is gone" in refused.err) == (1, True)
    assert "delete shards/other.json, if it is a copy: it says that it is the entry of local" in refused.err


def test_a_shard_whose_making_was_interrupted_is_made_by_the_next_command(rmq: Rmq) -> None:
    """Its tables are made before its entry, and have no commits then: nothing would be left out."""
    rmq.json("init")
    Shard.create(Root.parse(str(rmq.root)), "local")
    assert rmq("lag").exit_code == 0
    assert rmq.json("send", "--topic", "T", "--create", "body")["status"] == "committed"


def test_a_store_has_the_delay_levels_of_its_broker(rmq: Rmq) -> None:
    conf = rmq.folder / "broker.conf"
    conf.write_text("brokerName=broker-a\nmessageDelayLevel = 1s 20s 1m\n")
    assert rmq.json("init", "--broker-conf", "broker.conf")["levels"] == "1s 20s 1m"
    assert "delay levels: 1s 20s 1m" in rmq("init").out
    assert "delay levels 1s 20s 1m" in rmq("doctor").out
    assert rmq.json("init", "--levels", "1s 20s 60s", "--broker-conf", "broker.conf")["status"] == "already_there"


def test_an_import_says_which_delay_levels_the_broker_has_otherwise(rmq: Rmq) -> None:
    """Its consume queue has level 3 with a delay of 1 s, and level 1 as the store has it."""
    at_level_1 = delayed(1, 0) | {"queue_id": 0}
    at_level_1["properties"] = at_level_1["properties"] | {"DELAY": "1"}
    files = str(broker_of(rmq.folder / "broker", [delayed(0, 0), at_level_1]))
    for levels, others in (("1s 5s 1s", []), ("1s 5s 10s", [{"level": 3, "delay_ms": 1000}])):
        root = ("--root", str(rmq.folder / f"store{len(others)}"))
        rmq.json("init", "--levels", levels, *root)
        answer = rmq.json("import-store", files, "--broker", "broker-a", "--request", "2026-01-01-i", *root)
        assert answer["other_levels"] == others
        again = rmq("import-store", files, "--broker", "broker-a", "--request", "2026-01-01-i", *root)
        assert ("the broker has other delays: level 3 is 1 s" in again.err) == bool(others)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--levels", "1s 5x"), "'5x' is not a number with one of the units s, m, h, d"),
        (("--levels", "1s,5s"), "'1s,5s' is not a number"),
        (("--levels", " "), "needs delay levels"),
        (("--levels", "1s 0s"), "'0s' is a delay of 0 ms, it must be in (0, 365d]"),
        (("--levels", "-1s"), "'-1s' is a delay of -1000 ms"),
        (("--levels", "1s 366d"), "'366d' is a delay of 31622400000 ms"),
        (("--levels", "106751991167d"), "'106751991167d' is a delay of"),
        (("--broker-conf", "binary.conf"), "binary.conf is not a text file"),
        (
            ("--levels", "1s 5s", "--broker-conf", "broker.conf"),
            "--levels says '1s 5s' and broker.conf says '1s 20s 1m'",
        ),
        (("--broker-conf", "none.conf"), "none.conf cannot be read"),
    ],
)
def test_delay_levels_that_cannot_be_meant_make_no_store(rmq: Rmq, options: tuple[str, ...], says: str) -> None:
    (rmq.folder / "broker.conf").write_text("messageDelayLevel=1s 20s 1m")
    (rmq.folder / "binary.conf").write_bytes(b"\0messageDelayLevel=1s 20s 1m")
    refused = rmq("init", *options)
    assert (refused.exit_code, says in refused.err, rmq.root.exists()) == (2, True, False)


def test_of_a_broker_without_levels_of_its_own_rocketmqs_are_taken_which_is_told(rmq: Rmq) -> None:
    (rmq.folder / "broker.conf").write_text("brokerName=broker-a")
    made = rmq("init", "--broker-conf", "broker.conf", "--json")
    assert "note: broker.conf sets no messageDelayLevel: RocketMQ's default is used" in made.err
    assert '"levels": "1s 5s 10s 30s' in made.out


def test_a_level_of_a_year_is_the_longest(rmq: Rmq) -> None:
    assert rmq.json("init", "--levels", "1s 365d")["levels"] == "1s 365d"


def test_a_store_keeps_the_delay_levels_it_was_made_with(rmq: Rmq) -> None:
    rmq("init")
    refused = rmq("init", "--levels", "1s 20s")
    assert refused.exit_code == 2
    assert "has the delay levels '1s 5s 10s 30s" in refused.err
    assert "not '1s 20s'. They are set when a store is made" in refused.err


def test_no_store_is_made_without_delay_levels(tmp_path: Path) -> None:
    with pytest.raises(WrongUse, match="needs delay levels"):
        LakeStore.init(Root.parse(str(tmp_path)), levels="  ")
    assert not list(tmp_path.iterdir())


def test_an_import_says_what_came_and_a_second_one_changes_nothing(
    rmq: Rmq, broker_store: Callable[[str], Path]
) -> None:
    rmq("init")
    again = ["import-store", str(broker_store("market-clean")), "--broker", "broker-a"]
    first = rmq(*again, "--request", f"{TODAY}-one")
    assert lines_of(first.out)["status"] == "committed"
    assert "messages in 55 queues of broker-a" in first.out
    repeated = rmq.json(*again, "--request", f"{TODAY}-one")
    assert (repeated["status"], repeated["request_id"]) == ("already_committed", f"{TODAY}-one")
    other = rmq.json(*again)
    assert (other["status"], other["messages"], other["shard"]) == ("unchanged", 0, "broker-a")
    assert other["request_id"].startswith(f"{TODAY}-import-")


def test_an_id_under_which_another_broker_was_imported_is_refused(
    imported: Rmq, broker_store: Callable[[str], Path]
) -> None:
    (row,) = imported.json("sql", "select request_id from ctl where action = 'import'")
    again = ["import-store", str(broker_store("market-clean")), "--shard", "broker-a", "--request", row["request_id"]]
    assert imported.json(*again, "--broker", "broker-a")["status"] == "already_committed"
    again[1] = str(broker_store("market-killed"))
    answer = imported(*again, "--broker", "broker-b")
    assert answer.exit_code == 2
    assert "different parameters (broker_name broker-a; now broker_name broker-b" in answer.err


@pytest.mark.slow
def test_a_store_may_be_on_s3(
    rmq: Rmq, s3_root: S3Root, broker_store: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in s3_root.env.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("RMQ_ROOT", s3_root.uri)
    made = rmq.json("init")
    assert (made["status"], made["root"]) == ("created", s3_root.uri)
    imported = rmq.json("import-store", str(broker_store("market-clean")), "--broker", "broker-a")
    assert (imported["status"], imported["queues"]) == ("committed", 55)
    consumed = rmq.json("consume", "-g", "orders")
    assert consumed["messages"] == ORDERS
    rmq.correct_listeners()
    examined = rmq.json("doctor")
    assert statuses(examined)["exclusive create"] == statuses(examined)["requests"] == "ok"
    for answer in (
        made,
        imported,
        consumed,
        examined,
        rmq.json("lag", "-g", "orders"),
        rmq("lag", "--json", "-g", "x").json(),
    ):
        requests = answer["requests"]
        assert requests["GET"] > 0
        assert requests["total"] == sum(requests.get(kind, 0) for kind in Kind)
        assert 0 < requests["serial"] <= requests["total"]
        assert requests["usd"] > 0
    assert re.search(
        r"ok +requests: \d+ to S3 by these checks \(\d+ LIST, .*\), \d+ one after the other", rmq("doctor").out
    )
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    refused = rmq("topics")
    assert refused.exit_code == 1
    assert "AWS_SECRET_ACCESS_KEY does not match AWS_ACCESS_KEY_ID: correct them" in refused.err


def test_an_answer_about_a_folder_has_no_count_of_requests(imported: Rmq) -> None:
    imported.correct_listeners()
    examined = imported.json("doctor")
    assert "requests" not in statuses(examined)
    failed = imported("lag", "--json", "-g", "x").json()
    for answer in (examined, failed, imported.json("lag"), imported.json("consume", "-g", "orders")):
        assert "requests" not in answer


def test_a_folder_that_is_no_brokers_store_is_refused_and_makes_nothing(rmq: Rmq) -> None:
    rmq("init")
    (rmq.folder / "empty").mkdir()
    for source, code, says in (
        ("empty", 1, "empty is not a broker's store"),
        ("missing", 2, "missing is not a folder"),
    ):
        answer = rmq("import-store", source, "--broker", "broker-a", "--engine", "local")
        assert answer.exit_code == code
        assert f"error: {rmq.folder / says}" in answer.err
    assert rmq.json("topics")["topics"] == []


@pytest.mark.slow
def test_cutover_adopts_and_says_what_waits(imported: Rmq) -> None:
    cutover = ["cutover", "--broker", "broker-a", "--reason", "switched off"]
    dry = imported.json("cutover", "--broker", "broker-a", "--dry-run")
    assert "needs a reason" in imported("cutover", "--broker", "broker-a").err
    done = imported.json(*cutover)
    assert (done["status"], done["shard"]) == ("committed", "broker-a")
    told = ("groups", "waiting", "notes", "left_out")
    assert (dry["status"], [dry[name] for name in told]) == ("dry_run", [done[name] for name in told])
    assert done["waiting"] > 0
    (note,) = done["notes"]
    assert note.startswith("3 messages for LaterBox wait in the broker's own timer")
    (beyond,) = done["left_out"]
    assert beyond.startswith(
        "group gm_beyond has offsets beyond the end of 8 queues of OrderEvents and is not adopted there"
    )
    assert {row["held_by"] for row in imported.json("groups")["groups"] if row["group_name"] == "gm_beyond"} == {
        "broker"
    }
    assert lines_of(imported(*cutover, "--request", done["request_id"]).out)["status"] == "already_committed"
    another = imported(*cutover)
    assert another.exit_code == 2
    assert f"was cut over by request {done['request_id']}" in another.err
    assert imported.json("deliver", "--now", ALL_DUE)["delivered"] == done["waiting"]
    unknown = imported("cutover", "--broker", "broker-b", "--reason", "switched off")
    assert unknown.exit_code == 2
    assert "did you mean 'broker-a'" in unknown.err


def test_dispatch_has_nothing_left_to_do_after_a_commit(imported: Rmq) -> None:
    assert imported.json("dispatch") == {"status": "done", "shards": {"broker-a": 0}}
    assert "shard broker-a: 0 commits" in imported("dispatch").out


# --- doctor ----------------------------------------------------------------------------------------------------------


def statuses(answer: Any) -> dict[str, str]:
    return {check["check"]: check["status"] for check in answer["checks"]}


def test_doctor_finds_a_sound_machine_and_store(imported: Rmq) -> None:
    imported.correct_listeners()
    answer = imported.json("doctor")
    assert answer["status"] == "ok"
    sound = ["Python", "packages", "Java", "jars", "store", "exclusive create", "clock", "commit log", "derived tables"]
    sound += ["maintenance", "settings", "subscriptions", "listeners"]
    assert statuses(answer) == {**dict.fromkeys(sound, "ok"), "Spark": "skipped"}
    assert "fix: " not in imported("doctor").out


def test_doctor_says_of_what_is_broken_how_to_mend_it(rmq: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    (rmq.folder / "consumers.toml").write_text("[[groups]]")
    monkeypatch.setenv("RMQ_JARS", str(rmq.folder / "jars"))
    answer = rmq("doctor", "--json")
    assert answer.exit_code == 1
    found = statuses(answer.json())
    assert {name for name, status in found.items() if status == "failed"} == {"jars", "store", "settings"}
    assert (found["exclusive create"], found["subscriptions"]) == ("skipped", "skipped")
    assert all(check["mend"] for check in answer.json()["checks"] if check["status"] == "failed")
    shown = rmq("doctor").out
    assert "failed  jars:" in shown
    assert "fix: run 'make jars'" in shown
    assert "fix: make one with 'rmq init'" in shown
    assert not rmq.root.exists()


def test_doctor_does_not_take_a_missing_permission_for_damage(imported: Rmq) -> None:
    tables = ("_delta_log", "consumequeue")
    refused = lambda call: (  # noqa: E731
        Failure(errno.EACCES) if call.name == "open" and all(name in call.path for name in tables) else None
    )
    with FaultyFolder(imported.root, refused).installed():
        checks = {check["check"]: check for check in imported("doctor", "--json").json()["checks"]}
    assert "Permission denied" in checks["derived tables"]["found"]
    assert "--rebuild" not in checks["derived tables"]["mend"]
    assert "let this user read" in checks["derived tables"]["mend"]
    assert checks["commit log"]["status"] == "ok"


def test_doctor_does_not_ask_for_java_where_spark_is_not_installed(rmq: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_store.cli.doctor.find_spec", lambda name: None)
    answer = rmq("doctor", "--json").json()
    assert {name: status for name, status in statuses(answer).items() if name in ("Java", "jars")} == {
        "Java": "skipped",
        "jars": "skipped",
    }
    assert "pip install 'rocketmq-lakehouse[spark]'" in rmq("doctor").out


def test_doctor_looks_for_settings_that_somebody_named(rmq: Rmq) -> None:
    (rmq.folder / "consumers.toml").unlink()
    assert statuses(rmq("doctor", "--json").json())["settings"] == "skipped"
    assert statuses(rmq("doctor", "--json", "--settings", "mine.toml").json())["settings"] == "failed"


def test_doctor_imports_the_listeners(imported: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    imported.correct_listeners()
    settings = imported.folder / "consumers.toml"
    (imported.folder / "folder").mkdir()
    (imported.folder / "folder" / "shop_here.py").write_text("raise RuntimeError('no database')")
    monkeypatch.setenv("RMQ_LISTENER_PATH", "folder")
    subscription = '[[group.subscription]]\ntopic = "OrderEvents"\n'
    groups = {"here": "shop_here:Orders", "away": "shop_away:Orders", "gone": "demo.listener:Gone"}
    for name, listener in groups.items():
        settings.write_text(
            f'{settings.read_text()}\n[[group]]\nname = "{name}"\nlistener = "{listener}"\n{subscription}'
        )
    on_spark = 'name = "workers"\nlistener = "shop_workers:Orders"\nengine = "spark"'
    settings.write_text(f"{settings.read_text()}\n[[group]]\n{on_spark}\n{subscription}")
    answer = imported("doctor", "--json")
    assert answer.exit_code == 1
    (wrong,) = [check for check in answer.json()["checks"] if check["status"] == "failed"]
    assert wrong["check"] == "listeners"
    assert (
        "group here: listener shop_here:Orders: module shop_here cannot be imported: RuntimeError: no database"
        in wrong["found"]
    )
    assert "group away: listener shop_away:Orders: module shop_away cannot be imported" in wrong["found"]
    assert "group gone: listener demo.listener:Gone: demo.listener has no attribute Gone" in wrong["found"]
    assert "shop_workers" not in wrong["found"]
    assert "RMQ_LISTENER_PATH" in wrong["mend"]


def test_doctor_looks_at_everything_also_where_a_folder_of_listeners_is_missing(
    imported: Rmq, monkeypatch: pytest.MonkeyPatch
) -> None:
    imported.correct_listeners()
    monkeypatch.setenv("RMQ_LISTENER_PATH", "none")
    checks = {check["check"]: check for check in imported("doctor", "--json").json()["checks"]}
    assert [name for name, check in checks.items() if check["status"] == "failed"] == ["listeners"]
    assert checks["listeners"]["found"] == "RMQ_LISTENER_PATH none is not a folder"
    assert list(checks)[-1] == "Spark"


def test_doctor_names_every_subscription_that_a_window_would_refuse(imported: Rmq) -> None:
    imported.correct_listeners()
    settings = imported.folder / "consumers.toml"
    newer = settings.read_text().replace('topic = "OrderEvents"', 'topic = "OrderEvents"\nexpression = "TagA"')
    assert imported("consume", "--group", "orders").exit_code == 0
    settings.write_text(newer)
    answer = imported("doctor", "--json")
    assert (answer.exit_code, answer.json()["status"]) == (1, "failed")
    (failed,) = [check for check in answer.json()["checks"] if check["status"] == "failed"]
    assert failed["check"] == "subscriptions"
    assert "group orders: version 1 of its subscription (OrderEvents: TAG 'TagA') is not" in failed["found"]
    refused = imported("consume", "--group", "orders")
    assert (refused.exit_code, failed["found"] in refused.err) == (2, True)
    settings.write_text(newer.replace('name = "orders"\n', 'name = "orders"\nsubscription_version = 2\n'))
    assert statuses(imported.json("doctor"))["subscriptions"] == "ok"


def test_doctor_names_a_package_outside_its_range_and_lets_extras_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = ["rich<2,>=1.0.0", "no-such-thing[extra]<3,>=2.0", "no-such-extra<2,>=1; extra == 'spark'"]
    monkeypatch.setattr(doctor, "requires", lambda name: [*asked, "pytest<2,>=1; extra == 'dev'"])
    wrong = r"no-such-thing is not installed, not >=2.0,<3; pytest is \S+, not >=1,<2; rich is \S+, not >=1.0.0,<2"
    with pytest.raises(StoreUnusable, match=f"^{wrong}$"):
        doctor.packages_found()


def test_doctor_fails_when_the_metadata_names_no_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of an earlier release named exact versions. A check of none of them must not say ok."""
    monkeypatch.setattr(doctor, "requires", lambda name: ["rich==15.0.0"])
    with pytest.raises(StoreUnusable, match="names no ranges"):
        doctor.packages_found()


def test_doctor_finds_every_package_of_the_checkout_in_its_range() -> None:
    with_version = [text for text in requires("rocketmq-lakehouse") or () if ">=" in text]
    assert doctor.packages_found().startswith(f"{len({re.split(r'[<[]', text)[0] for text in with_version})} packages")


def test_a_store_is_not_looked_for_or_made_in_a_shard_or_in_a_brokers_directory(imported: Rmq, tmp_path: Path) -> None:
    for command in ("init", "topics"):
        refused = imported(command, "--root", str(imported.root / "broker-a"))
        assert (refused.exit_code, "is the folder of a shard: name the store" in refused.err) == (1, True)
    (tmp_path / "broker" / "commitlog").mkdir(parents=True)
    (tmp_path / "broker" / "commitlog" / f"{0:020}").write_bytes(b"x")
    refused = imported("init", "--root", str(tmp_path / "broker"))
    assert (refused.exit_code, "is the store directory of a broker" in refused.err) == (1, True)
    assert not (tmp_path / "broker" / "store.json").exists()


def test_doctor_names_a_queue_that_a_host_with_a_clock_ahead_has_written(imported: Rmq) -> None:
    assert imported("send", "--topic", "Notes", "--create", "--queues", "1", "x").exit_code == 0
    root = Root.parse(str(imported.root))
    assert "on this machine" in doctor.clock_found(root, Host())
    with pytest.raises(StoreUnusable, match=r"1 queues have messages from the future.*Notes.*lake-.* until 20"):
        doctor.clock_found(root, Host(now_ms=lambda: epoch_ms() - 3_600_000))


def test_doctor_finds_a_store_in_which_two_creates_win(rmq: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    rmq("init")
    monkeypatch.setattr(Root, "check_exclusive_create", lambda root: None)
    monkeypatch.setattr(Root, "create_exclusively", lambda root, name, content: _overwrite(root, name, content))
    with pytest.raises(StoreUnusable, match="8 of 8 simultaneous creates of one name succeeded"):
        doctor.one_winner(Root.parse(str(rmq.root)))


def _overwrite(root: Any, name: str, content: bytes) -> bool:
    path = Path(root.location, name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    return True


def test_doctor_refuses_a_clock_that_commits_would_refuse(rmq: Rmq, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Root("s3://bucket")
    monkeypatch.setattr(Root, "server_time_ms", lambda root, host: 1_800_000_000_000)
    assert "+30.0 s" in doctor.clock_found(root, Host(now_ms=lambda: 1_799_999_970_000))
    with pytest.raises(StoreUnusable, match=r"-61.0 s from this one's"):
        doctor.clock_found(root, Host(now_ms=lambda: 1_800_000_061_000))


def test_a_shard_is_made_with_one_reading_of_the_description(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In S3 each is a request, one after the other."""
    store, _ = LakeStore.init(Root.parse(str(tmp_path / "store")))
    real, read = Root.read, list[str]()

    def noted(root: Root, name: str, *bounds: int) -> bytes:
        read.append(name)
        return real(root, name, *bounds)

    monkeypatch.setattr(Root, "read", noted)
    store.create_shard("broker-a")
    assert read.count("store.json") == 1
    assert store.shard_names() == ["broker-a"]
