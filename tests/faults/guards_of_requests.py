"""Guards of requests: imports, windows, deliveries, operators, sends, deletes, redrives."""

from __future__ import annotations

from tests.faults.guard import Guard, cases

IMPORT = "tests/contract/test_import_store.py"
IMPORTS = "tests/faults/test_import_guards.py"
IMPORTED = "tests/contract/test_imported_log.py"
GONE = "tests/contract/test_cuts_without_messages.py"
LOST_ENDS = "tests/contract/test_lost_ends.py"
GENERATIONS = "tests/contract/test_queue_generations.py"
LOST_DELETES = (
    "a_log_that_lost_a_delete_with_its_end_is_not_continued_without_the_messages",
    "a_lost_delete_is_not_passed_over_where_retention_has_removed_what_shows_it",
    "a_delete_that_the_broker_still_has_stops_no_log_that_lost_its_end",
    "a_lost_delete_is_not_passed_over_where_the_broker_has_removed_the_messages",
)
LAST_RECORDS = "tests/unit/test_last_records.py"
SEND = "tests/contract/test_engines_send.py"
SEND_COMMAND = "tests/contract/test_cli_send.py"
REDRIVE = "tests/contract/test_engines_redrive.py"
CUT = "tests/contract/test_cli_cut_moves.py"
REPEATED = "tests/unit/test_repeated_moves.py"
UNDO = "tests/unit/test_undo.py"
OF_UNDO = "tests/contract/test_cli_undo.py"
DELETE = "tests/unit/test_delete_group.py"
DELETE_REFUSED = "tests/contract/test_engines_delete.py"
ONE_REQUEST = "tests/contract/test_engines_one_request.py"
OPERATORS = "tests/contract/test_engines_operators.py"
REBALANCE = "tests/contract/test_engines_rebalance.py"
STARTS = "tests/contract/test_engines_starts.py"
FIRST_WINDOW = "tests/unit/test_first_window.py"

REQUESTS = (
    # --- imports ---
    Guard(
        "lake.broker.import_part:begin_of",
        (
            *cases(IMPORTS, "a_log_with_other_bytes_before_the_position_is_not_the_one_that_was_imported"),
            *cases(IMPORTS, "a_log_that_ends_before_the_position_is_an_older_copy"),
            *cases(
                IMPORT,
                "a_log_that_lost_files_since_the_last_import_is_refused",
                "a_log_whose_files_before_the_position_were_all_removed_goes_on",
                "a_file_that_is_missing_just_before_the_position_is_named",
                "salvage_records_the_files_that_are_missing_and_what_the_broker_removed",
            ),
            *cases(LOST_ENDS, "a_lost_end_before_a_marker_is_refused_and_can_be_continued"),
            *cases(LOST_ENDS, "a_log_that_goes_on_behind_a_marker_is_imported"),
        ),
        (("at < first or fingerprint(", "fingerprint("),),
        deep=True,
    ),
    Guard(
        "lake.broker.import_part:fingerprint",
        cases(IMPORTS, "a_log_with_other_bytes_before_the_position_is_not_the_one_that_was_imported"),
        (("hash_of(source, log, begin, end)", '""'),),
    ),
    Guard(
        "lake.broker.last_records:has_recorded",
        cases(LOST_ENDS, "a_marker_that_was_written_over_is_missed"),
        (("== digest", "!= ''"),),
    ),
    Guard(
        "lake.broker.last_records:window",
        cases(LAST_RECORDS, "the_last_record_and_at_least_4096_bytes_of_its_file"),
        (("min(last.begin, last.end - FINGERPRINT_BYTES)", "last.end - FINGERPRINT_BYTES"),),
    ),
    Guard(
        "lake.broker.last_records:over_marker",
        (
            *cases(LAST_RECORDS, "a_marker_belongs_to_the_record_before_it"),
            *cases(LOST_ENDS, "a_marker_that_was_written_over_is_missed"),
        ),
        (("replace(last, end=end)", "last"), ("marker == task_begin", "marker")),
    ),
    Guard(
        "lake.broker.import_commit:_queue_positions",
        cases(
            IMPORT,
            "a_queue_that_began_again_says_what_it_means_and_what_can_be_done",
            "salvage_records_the_gap_in_a_queue",
        ),
        deep=True,
    ),
    Guard("lake.broker.import_store:_shard_of", cases(IMPORTS, "a_broker_is_imported_into_one_shard")),
    Guard(
        "lake.broker.import_store:_parts",
        cases(IMPORTS, "a_request_id_that_imported_another_broker_is_refused"),
        (('refuse_other_request(request.request_id, recorded, {"broker_name": request.broker_name})', "pass"),),
    ),
    Guard(
        "lake.broker.import_store:_next_part",
        cases(IMPORTS, "of_two_attempts_of_one_request_one_is_committed"),
        (("if parts and parts[-1].request_complete", "if False"),),
    ),
    Guard(
        "lake.broker.import_store:_Import.commit_part",
        cases(IMPORTS, "a_broker_that_is_cut_over_meanwhile_is_not_imported"),
        (("refuse_closed(shard, broker_name)", "pass"),),
    ),
    Guard(
        "lake.broker.diverged_log:refuse_closed",
        (
            *cases(IMPORTS, "a_broker_that_is_cut_over_meanwhile_is_not_imported"),
            *cases("tests/contract/test_diverged_log.py", "a_second_run_does_nothing_and_the_old_name_is_closed"),
        ),
        deep=True,
    ),
    Guard("lake.broker.imported_log:refuse_imported", cases(IMPORTS, "a_log_is_imported_under_one_name")),
    Guard(
        "lake.broker.import_store:_Import.commit_part",
        cases(IMPORTED, "a_log_that_another_import_brought_in_meanwhile_is_refused"),
        (("refuse_imported(self.store, self.broker.files, log, (*older, broker_name), begin)", "pass"),),
    ),
    Guard(
        "lake.broker.diverged_log:refuse_old_records",
        (
            *cases(
                LOST_ENDS,
                "old_records_behind_new_ones_are_not_imported_again",
                "a_marker_in_the_place_of_lost_messages_is_the_cut",
            ),
            *cases(GONE, "old_records_that_retention_has_removed_here_are_not_imported_again"),
        ),
        (("not old and not has_all_of(shard, name, read.begin)", "False"),),
    ),
    Guard(
        "lake.broker.diverged_log:_cuts",
        cases(GONE, "a_new_record_in_the_place_of_one_that_a_salvage_left_out_is_the_cut"),
        (("if open_cuts else {}", "if False else {}"),),
    ),
    Guard(
        "lake.broker.common_log:begin_of_log",
        (
            *cases(
                LOST_ENDS,
                "new_records_before_old_ones_are_not_passed_over",
                "damage_in_the_tail_that_was_imported_stops_nothing",
                "an_import_of_an_earlier_version_is_compared_message_by_message",
            ),
            *cases(
                GONE,
                "new_records_are_not_passed_over_where_retention_has_removed_the_old_ones",
                "a_clock_that_was_set_back_makes_no_cut_of_a_sound_log",
            ),
        ),
        (
            ("has_recorded(source, log, recorded)", "True"),
            ("cause is None and other is None", "False"),
            ("before is None or begin", "recorded is None or begin"),
            ("is_same is False and not all(", "False and ("),
        ),
    ),
    Guard(
        "lake.broker.imported_records:first_new_record",
        (
            *cases(LOST_ENDS, "damage_in_the_tail_that_was_imported_stops_nothing"),
            *cases(GONE, "damage_where_retention_has_removed_messages_stops_nothing"),
        ),
        (("one.store_timestamp > newest_ms", "True"),),
    ),
    Guard(
        "lake.broker.imported_records:removed_records",
        cases(GONE, "old_records_are_not_imported_again_where_the_newest_messages_were_removed_too"),
        (("ms <= newest_ms", "ms < newest_ms"),),
    ),
    Guard(
        "lake.broker.lost_deletes:refuse_lost_deletes",
        cases(GENERATIONS, *LOST_DELETES),
    ),
    Guard(
        "lake.broker.lost_deletes:_parts_across",
        cases(GENERATIONS, *LOST_DELETES),
        (
            ("end_of_copy >= cut", "end_of_copy > cut + 100_000"),
            ("(end_of_copy is None or end_of_copy >= cut)", "True"),
        ),
    ),
    Guard(
        "lake.broker.diverged_log:_first_offsets",
        cases(GONE, "a_queue_goes_on_where_the_log_says_it_if_the_lost_messages_were_removed_here"),
        (("if unknown:", "if False:"),),
    ),
    Guard(
        "lake.broker.imported_records:_is_record_of",
        (
            *cases(LOST_ENDS, "the_retry_of_another_group_is_another_record"),
            *cases("tests/contract/test_diverged_log.py", "a_field_without_a_checksum_that_was_changed_is_no_cut"),
        ),
        (
            ('record.properties == dict(row["properties"] or ())', "True"),
            ("changed == 0 or changed > most_changed", "True"),
        ),
    ),
    Guard(
        "lake.broker.imported_log:_names_with",
        cases(IMPORTED, "a_copy_of_the_log_is_refused_under_a_new_name"),
        (("if others and begin is None", "if False"),),
    ),
    Guard(
        "lake.broker.last_records:shows_last_records",
        cases(IMPORTED, "the_rest_of_a_file_shows_no_log"),
        (("not only_zeros(", "not bool("),),
    ),
    Guard(
        "lake.broker.salvage:is_last_written",
        cases(IMPORT, "a_record_whose_size_reaches_behind_the_last_one_hides_none"),
        (("next_record(data, begin, file.end_offset, begin) is None", "True"),),
    ),
    # --- requests: sent, deleted, redriven, consumed once ---
    Guard(
        "commit.request:refuse_other_request",
        cases(ONE_REQUEST, "a_reset_to_somewhere_else_is_not_told_that_it_is_done"),
    ),
    Guard("producer.send:sent_before", cases(SEND, "a_request_is_not_sent_again_with_other_messages")),
    Guard(
        "producer.send:is_same",
        cases(
            SEND_COMMAND,
            "a_finished_request_gets_no_more_messages_and_no_fewer",
            "a_request_of_an_earlier_version_is_compared_part_by_part",
        ),
        (('ctl.parameter("digest") == part.digest and ', ""), (" and part.whole.is_of(ctl)", "")),
    ),
    Guard(
        "lake.window.send_request:_refuse_other_messages",
        cases(
            SEND_COMMAND,
            "a_finished_request_gets_no_more_messages_and_no_fewer",
            "a_request_that_was_cut_is_finished_by_its_own_messages_only",
            "a_commit_that_a_user_gave_the_id_of_a_part_is_no_part",
            "a_request_of_an_earlier_version_is_compared_part_by_part",
            "a_request_is_refused_for_a_topic_of_another_shard",
        ),
    ),
    Guard(
        "lake.window.send:send",
        (
            *cases(SEND, "the_same_request_is_sent_once", "everything_wrong_is_said_at_once_and_nothing_is_sent"),
            "tests/contract/test_derived_damage.py::test_a_cursor_beyond_the_log_is_refused",
        ),
        (
            ("refuse_other_history(shard, shard.consumequeue)", "pass"),
            ("check_messages(messages, started_ms)", "pass"),
            ("parts := shard.ctls_of_request(request_id, None, Action.SEND)", "parts := ()"),
        ),
        deep=True,
    ),
    Guard(
        "admin.delete_group:DeleteGroupRequest.__post_init__",
        cases(DELETE, "a_replay_is_not_deleted")
        + cases(DELETE_REFUSED, "nothing_a_system_group_a_broadcasting_group_or_no_reason_is_refused"),
        (('need_reason("a delete", self.reason)', "pass"),),
    ),
    Guard(
        "admin.delete_group:DeleteGroupRequest.moves",
        cases(DELETE_REFUSED, "nothing_a_system_group_a_broadcasting_group_or_no_reason_is_refused"),
    ),
    # --- the folder of another shard ---
    Guard("lake.table.shard_entry:refuse_another", ("tests/contract/test_shard_of_another.py",)),
    # --- requests that were cut between two shards ---
    Guard(
        "admin.repeated_moves:refuse_rest",
        cases(REPEATED, "the_rest_of_a_request_is_refused_where_another_move_came_after_it"),
        (("if move]", "if False]"), ("if before.since]", "if False]")),
    ),
    Guard(
        "admin.repeated_moves:first_time",
        cases(REPEATED, "a_move_is_later_than_a_request_by_the_times_of_the_store"),
        (("min(", "max("),),
    ),
    Guard(
        "admin.repeated_moves:later_move",
        cases(REPEATED, "a_move_is_later_than_a_request_by_the_times_of_the_store"),
        (
            ("ctl.store_timestamp > first_ms", "ctl.store_timestamp >= first_ms"),
            ("and ctl.action in MOVING", ""),
            ("ctl.group == group or", ""),
            ("or any(move.group == group for move in ctl.moved)", ""),
        ),
    ),
    Guard(
        "admin.undo:_without_start",
        cases(UNDO, "no_start_is_taken_away_after_the_groups_first_window"),
        (
            ("window is None or (window.epoch or 0) < (undone.epoch or 0)", "True"),
            ("(window.epoch or 0) < (undone.epoch or 0)", "False"),
        ),
    ),
    Guard(
        "admin.undo:UndoRequest.proposal",
        cases(OPERATORS, "a_first_window_overtakes_an_undo_that_takes_a_start_away"),
        (("closed=prefixes", "closed=()"),),
    ),
    Guard("admin.undo:refuse_other_undo", cases(UNDO, "the_rest_of_an_undo_undoes_the_same_action_or_nothing")),
    Guard(
        "admin.repeated_moves:refuse_overtaken",
        cases(
            REPEATED,
            "a_move_is_stale_where_another_one_came_since_the_shards_were_looked_at",
            "an_undo_is_stale_where_a_later_move_of_an_operator_came_after_the_action",
        ),
        (("elif by == _OF_BROKER", "elif False"),),
    ),
    Guard(
        "lake.admin.offset_moves:move_in_all",
        cases(
            CUT,
            "the_rest_of_an_undo_is_not_done_where_its_half_was_followed",
            "an_id_that_another_shard_has_for_another_move_is_refused",
            "the_rest_of_a_move_is_not_done_where_another_one_overtakes_it",
            "a_move_that_another_one_overtakes_between_two_shards_is_refused_in_the_second",
            "two_moves_at_the_same_moment_in_different_shards_say_so",
        ),
        (
            ("if len(requests) > 1 or others", "if len(requests) > 1"),
            ("seen.get(shard.name)", "None"),
            ("[*beside]", "[]"),
        ),
    ),
    Guard(
        "lake.admin.offset_moves:move_offsets",
        cases(CUT, "a_move_that_another_one_overtakes_between_two_shards_is_refused_in_the_second"),
        (("_planned(shard, request, seen)", "_planned(shard, request)"),),
    ),
    Guard(
        "lake.admin.offset_moves:_planned",
        (
            *cases(OF_UNDO, "an_undo_that_another_one_overtakes_after_its_choice_names_that_one"),
            *cases(CUT, "a_move_that_another_one_overtakes_between_two_shards_is_refused_in_the_second"),
        ),
        (
            ("seen is not None and positions.epoch(request.group) != seen", "False"),
            ("seen = request.undone.epoch or 0", "pass"),
        ),
    ),
    Guard(
        "lake.admin.offset_moves:_refuse_rest",
        cases(
            CUT,
            "the_rest_of_an_undo_is_done_where_the_undone_action_came_late",
            "the_rest_of_an_import_of_offsets_is_not_done_over_a_later_move",
        ),
        (
            ("request.action is not Action.UNDO", "True"),
            ("request.action is not Action.UNDO", "False"),
        ),
    ),
    Guard(
        "lake.admin.clone:clone",
        cases(
            CUT,
            "the_rest_of_a_clone_is_refused_where_its_source_was_deleted",
            "a_finished_clone_has_the_moves_of_all_its_shards_when_its_source_is_gone",
        ),
        (("(*every, *shards)", "shards"), ("having | made.keys()", "having")),
    ),
    Guard(
        "lake.admin.clone:_loss_of_source",
        cases(CUT, "a_shard_that_never_had_the_source_of_a_clone_is_no_rest"),
        (("if request.takes_source(lookup, ctl)", ""),),
    ),
    Guard(
        "lake.admin.delete_group:delete_group",
        cases(CUT, "a_delete_that_a_clone_overtakes_leaves_all_of_the_clone"),
        (("every=every", "every=()"),),
    ),
    Guard(
        "lake.admin.undo:actions_to_undo",
        cases(CUT, "a_shard_in_which_the_undone_action_never_happened_is_no_rest"),
        (("(*every, *shards)", "shards"),),
    ),
    Guard(
        "lake.admin.undo:_epoch_without",
        cases(CUT, "an_undo_of_a_move_that_goes_on_in_another_shard_is_refused"),
        (("if shard.ctls_of_request(", "if not shard.ctls_of_request("),),
    ),
    Guard("admin.redrive:_at_places", cases(REDRIVE, "a_place_where_no_letter_lies_is_refused"), deep=True),
    Guard(
        "admin.redrive:_queue_nums",
        cases(REDRIVE, "a_topic_that_is_not_there_or_not_for_messages_is_refused"),
        deep=True,
    ),
    Guard(
        "admin.redrive:plan_redrive",
        cases(
            REDRIVE,
            "a_letter_is_sent_once_also_by_requests_that_overlap",
            "a_big_request_is_done_in_parts_and_who_dies_meanwhile_is_not_meant",
        ),
        (
            ("without(ranges[queue], sent.get(queue, ()))", "without(ranges[queue], ())"),
            ("bounds_of(parts[0]) if parts else ", ""),
        ),
        deep=True,
    ),
    Guard(
        "admin.redrive:refuse_failures",
        cases(REDRIVE, "all_or_nothing_sends_nothing_when_an_edit_does_not_apply_to_one"),
        deep=True,
    ),
    Guard(
        "lake.admin.redrive:redrive",
        cases(REDRIVE, "a_later_attempt_of_the_same_request_takes_over_and_fences_the_earlier_one"),
        (("claim.taken.ended_by(proposal)", "proposal"),),
        deep=True,
    ),
    Guard(
        "window.consume:_refuse_unclaimed",
        (
            *cases(OPERATORS, "a_window_whose_work_was_moved_to_another_queue_is_planned_again"),
            *cases(REBALANCE, "a_request_goes_on_where_a_request_that_was_done_meanwhile_left_it"),
        ),
    ),
    Guard(
        "window.consume:wish",
        cases(REBALANCE, "the_first_window_of_a_group_needs_all_its_queues"),
        (("if plan.chooses else whole", "if False else whole"),),
    ),
    Guard(
        "window.plan:Planner._refuse_moved",
        (
            *cases(
                REBALANCE,
                "a_first_window_that_an_operator_overtakes_before_its_claim_is_refused",
                "a_window_is_refused_whose_group_is_deleted_before_its_claim",
            ),
            *cases(OPERATORS, "a_window_whose_work_was_moved_to_another_queue_is_planned_again"),
        ),
    ),
    Guard(
        "window.plan:Planner._elsewhere",
        cases(REBALANCE, "of_two_first_windows_the_second_one_is_none_after_its_claim"),
        (("if not self._is_first:", "if before is None and not self._is_first:"),),
    ),
    Guard(
        "window.plan:Plan.is_claimed_as_next",
        cases(STARTS, "a_first_window_that_was_planned_before_one_elsewhere_was_committed_starts_where_that_one_chose"),
        ((" and not self.chooses", ""),),
    ),
    Guard(
        "window.first_window:_holds",
        (
            *cases(FIRST_WINDOW, "a_delete_in_the_shard_of_the_first_window_alone_ends_no_start_that_it_chose"),
            *cases(FIRST_WINDOW, "after_a_delete_in_all_shards_nothing_is_left_of_the_first_window"),
        ),
        ((' and record["deleted"] == deleted[name]', ""), ("name in deleted and ", "False and ")),
    ),
    Guard(
        "lake.admin.replay:check_attempt",
        cases("tests/contract/test_cli_replays.py", "an_attempt_is_begun_in_no_shard_when_one_cannot_read_its_range"),
        (("if proposal is not None:", "if False:"),),
    ),
    Guard(
        "window.consume:_refuse_other",
        (
            *cases(ONE_REQUEST, "a_window_with_other_bounds_is_not_told_that_it_is_done"),
            *cases(
                REBALANCE,
                "every_consumer_has_requests_of_its_own",
                "a_request_of_one_consumer_is_known_to_who_reads_all_queues",
            ),
        ),
        (("refuse_other_request(request.request_id, json.loads(parts[0].parameters), requested)", "pass"),),
        deep=True,
    ),
)
