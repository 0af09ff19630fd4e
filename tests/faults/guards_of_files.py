"""Guards of what is removed: vacuum, clean-up of a log, retention, compaction."""

from __future__ import annotations

from tests.faults.guard import Guard, cases

VACUUM = "tests/contract/test_vacuum.py"
EXPORT_LOCK = "tests/unit/test_export_lock.py"
COMPACT = "tests/contract/test_compact.py"
CHECKPOINT = "tests/contract/test_checkpoint.py"
LOGS = "tests/faults/test_planted_logs.py"
SECOND_READER = "tests/unit/test_second_reader.py"
ORPHANS = "tests/unit/test_orphans.py"
RETENTION = "tests/unit/test_retention.py"
NAMES = "tests/contract/test_vacuum_names.py"
COMES_FIRST = "the_entry_of_a_vacuum_comes_first_and_conflicts_with_every_other"
CANNOT_BE_READ = "a_log_that_cannot_be_read_as_it_was_listed_ends_a_vacuum"

FILES = (
    # --- what may be deleted ---
    Guard("maintain.orphans:check_age", (ORPHANS,)),
    Guard(
        "maintain.orphans:orphans",
        (ORPHANS,),
        (
            ("file.path not in named.kept and ", ""),
            (" and now_ms - newest_ms >= age_ms", ""),
            (", named.removed_ms.get(file.path, 0)", ", 0"),
            ("file.modified_ms, named", "0, named"),
            ("(is_data_file(file.path) or is_temporary(file.path)) and ", ""),
        ),
    ),
    Guard(
        "lake.maintain.vacuum:vacuum",
        cases(VACUUM, "an_age_at_which_a_run_may_commit_is_refused"),
        (("check_age(request.age_ms)", "pass"),),
    ),
    Guard(
        "lake.maintain.vacuum:_vacuum",
        cases(NAMES, COMES_FIRST, "a_file_that_is_committed_before_the_entry_of_the_vacuum_is_kept"),
        (
            ("now_ms = _announced(shard, table, request, candidates, host)", "now_ms = table.log.view.known_ms"),
            ("    candidates = orphans(stored, named_files(shard, table, stored), now_ms, request.age_ms)", "    pass"),
        ),
    ),
    Guard(
        "lake.maintain.vacuum:_delete",
        cases(NAMES, "a_live_file_is_never_deleted"),
        (("assert not live", "assert True"),),
    ),
    Guard(
        "lake.maintain.vacuum:_put",
        cases(NAMES, f"{COMES_FIRST}[offsets]", "a_vacuum_that_cannot_write_its_entry_deletes_nothing"),
        (("operation=VACUUM", 'operation="WRITE"'),),
    ),
    Guard(
        "lake.maintain.vacuum:named_files",
        (NAMES,),
        (
            ('kept = set(table.files().column("path").to_pylist())', "kept = set()"),
            ("kept |= added", "pass"),
            ("kept |= {file.path for file in entry.added}", "pass"),
            ("kept |= set(entry.removed)", "pass"),
            ("removed_ms |= tombstones", "pass"),
            ("removed_ms |= {path: max(at_ms, removed_ms.get(path, 0)) for path in entry.removed}", "pass"),
            ("kept |= files_of_segments(shard.consumequeue)", "pass"),
            ("_refuse_foreign_paths(table, kept)", "pass"),
        ),
    ),
    Guard("lake.maintain.vacuum:_entry", cases(NAMES, CANNOT_BE_READ)),
    Guard("lake.maintain.vacuum:_of_checkpoint", cases(NAMES, CANNOT_BE_READ)),
    Guard(
        "lake.maintain.vacuum:_refuse_foreign_paths",
        cases(NAMES, "a_file_that_is_named_by_its_whole_address_ends_a_vacuum"),
    ),
    Guard(
        "lake.table.checkpoint:clean_up",
        cases(
            CHECKPOINT,
            "nothing_is_deleted_behind_a_young_checkpoint",
            "a_checkpoint_that_cannot_be_read_counts_for_nothing",
            "what_lies_behind_an_old_checkpoint_is_deleted_oldest_first",
        ),
        (
            ("age_ms >= LEAST_AGE_MS", "True"),
            ("table.log.sound_checkpoint(checkpoint)", "pass"),
            (" and int(match[1]) < checkpoint", ""),
        ),
    ),
    Guard(
        "lake.table.checkpoint:write_checkpoint",
        cases(CHECKPOINT, "a_log_that_was_cleaned_up_meanwhile_gets_no_checkpoint"),
        deep=True,
    ),
    Guard(
        "lake.table.second_reader:check_files",
        cases(
            LOGS,
            "a_path_that_has_to_be_encoded_is_no_fault",
            "two_values_of_a_partition_in_a_checkpoint_are_found",
        ),
        (
            ('ours.sort_by("path").equals(theirs.sort_by("path"))', "True"),
            ('encoded(row.pop("path"))', 'row.pop("path")'),
            ('*(f"partition.{name}" for name in table.layout.partition_by)', ""),
        ),
    ),
    Guard(
        "lake.maintain.maintain:maintain",
        cases(LOGS, "no_maintenance_takes_files_out_of"),
        (('request.steps & (_OF_COMMIT_LOG if name == "commitlog" else _OF_DERIVED)', "False"),),
    ),
    Guard(
        "lake.table.second_reader:in_time",
        (SECOND_READER,),
        (
            ("not all(earlier.done() for earlier in _late)", "False"),
            ("_late.add(answer)", "pass"),
            ("wait([answer], _MOST_S_AFTER_SIGNAL)", "pass"),
            ("except RuntimeError as error:", "except LookupError as error:"),
            ("except BaseException as error:  # a panic", "except LookupError as error:"),
        ),
    ),
    Guard(
        "lake.table.delta_log:DeltaLog.read_again",
        cases(CHECKPOINT, "a_log_that_was_cleaned_up_meanwhile_gets_no_checkpoint"),
        ((" and crc32(content) == self.view.checksums.get(version)", ""),),
    ),
    # --- retention and compaction ---
    Guard(
        "maintain.retention:removal",
        (RETENTION,),
        (
            ("max(queue.removable.get(limit, 0), queue.min_offset), queue.max_offset", "queue.removable.get(limit, 0)"),
            ("min(held_to, slowest)", "held_to"),
            ("queue.min_offset if queue.queue.topic in WAITING_TOPICS else ", ""),
        ),
    ),
    Guard(
        "maintain.retention:removable_by_age",
        (RETENTION,),
        ((">= before_ms", "> before_ms"), ("elif segment.queue not in kept:", "else:")),
    ),
    Guard(
        "lake.maintain.retention:offsets_of_groups",
        cases(
            "tests/contract/test_retention.py",
            "the_retries_of_a_deleted_group_wait_for_no_reader",
            "a_replay_holds_nothing_back",
        ),
        (
            ("if positions.get(del_id(group)) is None", "if True"),
            ("groups.setdefault(group, {})", "pass"),
            (" and not is_of_a_replay(group)", ""),
        ),
    ),
    Guard(
        "broker_files.export_lock:_held",
        cases(
            EXPORT_LOCK,
            "a_second_export_to_the_file_is_refused_and_one_to_another_file_is_not",
            "a_lock_file_that_its_holder_has_removed_is_not_the_lock_any_more",
            "a_lock_file_that_may_not_be_opened_is_of_another_user",
            "a_file_that_is_none_has_its_own_error",
            "a_file_system_without_locks_is_named",
        ),
        (("if _is_file_of(handle, lock):", "if True:"),),
    ),
    Guard(
        "lake.maintain.compact:_joined",
        cases(
            COMPACT,
            "a_second_compaction_meanwhile_replaces_nothing_twice",
            "segments_that_another_compaction_has_moved_are_no_damage",
        ),
        (("removed=tuple(paths)", "removed=()"),),
        deep=True,
    ),
    Guard(
        "lake.maintain.compact:_staged",
        cases(
            COMPACT, "a_file_that_was_changed_is_not_joined", "a_file_with_fewer_rows_than_the_log_says_is_not_replaced"
        ),
        (("_digests(shard, paths)", "{}"),),
        deep=True,
    ),
    Guard(
        "lake.maintain.checked_file:stage_checked",
        cases(COMPACT, "what_is_read_back_wrongly_replaces_nothing"),
        deep=True,
    ),
)
