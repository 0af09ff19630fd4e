"""Guards of a commit: the decision, claims, the entry on its way into the log, the commit of the lake."""

from __future__ import annotations

from tests.faults.guard import Guard, cases

DECIDE = "tests/unit/test_commit_decide.py"
CLAIM = "tests/unit/test_claim.py"
APPEND = "tests/unit/test_append.py"
LAKE = "tests/faults/test_commit_of_the_lake.py"
LOG = "tests/contract/test_delta_log.py"
COMPACT = "tests/contract/test_compact.py"
CHECKPOINT = "tests/contract/test_checkpoint.py"
REPLACED = "tests/contract/test_replaced_files.py"
BACKUP = "tests/faults/test_backup.py"
UNKNOWN = (
    "tests/faults/test_store_answers.py::"
    "test_when_nothing_can_be_confirmed_the_outcome_is_unknown_and_the_same_request_tells_it_later"
)
OPENING = cases(
    LOG,
    "a_missing_entry_with_later_ones_is_named",
    "a_missing_entry_behind_a_checkpoint_is_named",
    "a_folder_without_entries_is_no_table",
    "a_listing_with_a_hole_is_read_again",
    "a_log_that_is_cleaned_at_every_listing_is_named",
    "a_clean_up_between_the_listing_and_the_reading_is_seen",
    "a_log_that_takes_an_hour_to_read_is_read_again",
    "who_creates_a_table_leaves_one_alone_that_cannot_be_read",
    "a_log_may_end_at_its_checkpoint",
    "a_damaged_checkpoint_is_replaced_by_an_older_one_or_named",
)
OF_A_FILE = "a_commit_of_a_file_that_is_not_as_it_says_is_refused"

COMMITS = (
    # --- the decision: epoch, claim and offsets, bases, clocks, evidence ---
    Guard("commit.decide:check_evidence", (DECIDE,)),
    Guard("commit.decide:check_age", (DECIDE,)),
    Guard("commit.decide:check_day", (DECIDE,)),
    Guard("commit.decide:first_day", (DECIDE,), ((" - timedelta(days=MOST_DAYS_AHEAD)", ""),)),
    Guard(
        "commit.decide:decide",
        (DECIDE,),
        (
            ("compare(proposal, positions)", "pass"),
            ("for app_id in proposal.begins} | dict", "for app_id in ()} | dict"),
        ),
    ),
    Guard(
        "commit.decide:decide_in_turn",
        (DECIDE,),
        (
            ("check_day(decided.ctl)", "pass"),
            ("positions = positions.advanced(positions.version, decided.positions, decided.updated_ms)", "pass"),
        ),
    ),
    Guard("commit.decide:compare", (DECIDE,)),
    Guard(
        "commit.decide:_moved",
        (DECIDE,),
        (
            (" and value == positions.get(app_id)", ""),
            ("kind_of(app_id) == PositionKind.SUBSCRIPTION and ", ""),
            (" - agreed", ""),
            ("return moved | removed", "return removed"),
            (" | removed", ""),
            (" | (new - proposal.expect.keys())", ""),
            ("(new - proposal.expect.keys())", "new"),
            (" | _left_behind(proposal, positions)", ""),
        ),
    ),
    Guard(
        "commit.decide:_left_behind",
        (DECIDE,),
        (
            ('offset < least.get(id_.split("/", 2)[2], 0)', "True"),
            (" - proposal.behind", ""),
        ),
    ),
    Guard(
        "commit.decide:_same",
        (DECIDE,),
        (
            ("kind == PositionKind.CLAIM", "False"),
            ("Claim.of(expected).number == Claim.of(current).number", "True"),
            ("(PositionKind.EPOCH, PositionKind.MIN)", "(PositionKind.EPOCH,)"),
            ("(PositionKind.EPOCH, PositionKind.MIN)", "(PositionKind.MIN,)"),
            ("(expected or 0) == (current or 0)", "True"),
            ("return expected == current", "return True"),
        ),
    ),
    Guard("commit.decide:check_not_ahead", (DECIDE,)),
    Guard(
        "commit.decide:_store_timestamp",
        (DECIDE,),
        (
            ("return max(clocks.own_ms, newest)", "return clocks.own_ms"),
            ("abs(clocks.own_ms - clocks.store_ms)", "(clocks.own_ms - clocks.store_ms)"),
            ("abs(clocks.own_ms - clocks.store_ms)", "(clocks.store_ms - clocks.own_ms)"),
            (" if segment.base is None", ""),
        ),
    ),
    Guard(
        "commit.decide:_with_bases",
        (DECIDE,),
        (("ends.get(segment.queue, positions.max_offset(segment.queue))", "positions.max_offset(segment.queue)"),),
    ),
    # --- claims ---
    Guard(
        "commit.claim:next_claim",
        (CLAIM,),
        (
            ("remaining_s <= 0", "True"),
            ("holder.request_id == request_id", "True"),
            ("holder is not None and ", ""),
        ),
    ),
    Guard("commit.claim:take", (CLAIM,)),
    Guard("commit.claim:Taken.released", (CLAIM,), ((" if now[app_id].number == claim.number", ""),)),
    Guard(
        "commit.claim:Taken.ended_by",
        (CLAIM,),
        (
            ("expect={**proposal.expect, **_packed(self.claims)}", "expect=proposal.expect"),
            ("advance={**proposal.advance, **_packed(_ended(self.claims))}", "advance=proposal.advance"),
        ),
    ),
    Guard("commit.claim:_holders", (CLAIM,), ((" and lasting[app_id].number == number", ""),)),
    # --- the entry on its way into the log ---
    Guard("commit.append:is_young", (APPEND,), (("abs(now_ms - view_ms)", "(now_ms - view_ms)"),)),
    Guard(
        "commit.append:Append.settled",
        (APPEND,),
        (
            ("not (self.unanswered or self.taken)", "not self.taken"),
            ("not (self.unanswered or self.taken)", "not self.unanswered"),
        ),
    ),
    Guard(
        "commit.append:Append.put_answered",
        (APPEND,),
        (
            ("if is_young(self.view_ms, now_ms) and not freed", "if not freed"),
            (" and not freed", ""),
            ("request=Request.REOPEN, unanswered=True", "request=Request.REOPEN"),
            ("request=Request.READ, taken=True", "request=Request.READ"),
            ("request=Request.READ, unanswered=True", "request=Request.READ"),
        ),
    ),
    Guard(
        "commit.append:Append.read_answered",
        (APPEND,),
        (
            ("if freed or not is_young(self.view_ms, now_ms)", "if freed"),
            ("if freed or not", "if not"),
            ("return Append(self.version + 1, self.view_ms)", "return Verdict.OVERTAKEN"),
            ("Request.REOPEN if self.taken else Request.PUT", "Request.PUT"),
        ),
    ),
    Guard(
        "commit.append:Append.reopened",
        (APPEND,),
        (
            ("if committed", "if False"),
            ("if version >= self.version", "if False"),
            ("if version < self.version - 1", "if False"),
            ("taken=False", "taken=self.taken"),
        ),
    ),
    Guard(
        "lake.table.delta_log:Content.conflicts",
        cases(
            LOG,
            "an_entry_that_came_first_conflicts_when_it_touches_what_this_one_relies_on",
            "a_removed_file_conflicts_only_with_who_removes_it",
        ),
        (
            ("entry.protocol is not None or ", ""),
            (" or entry.metadata is not None", ""),
            ("if entry.is_vacuum", "if False"),
            ("not entry.positions.keys().isdisjoint(self.positions)", "False"),
            ("any(app_id.startswith(prefix) for prefix in self.closed for app_id in entry.positions)", "False"),
            ("bool(self.removed) and not set(entry.removed).isdisjoint(self.removed)", "False"),
        ),
    ),
    Guard(
        "lake.table.delta_log:DeltaLog.append",
        cases(
            LOG,
            "a_failure_is_reported_only_when_nothing_can_be_in_the_log",
            "who_is_refused_for_lack_of_rights_does_not_wait",
            "who_may_be_in_the_log_or_only_has_to_wait_goes_on",
            "a_log_that_was_replaced_by_an_older_one_leaves_the_outcome_unknown",
        )
        + cases("tests/faults/test_backup.py", "after_a_restore_in_place_under_a_running_process_the_log_is_refused"),
    ),
    Guard(
        "lake.maintain.backup:_check_history",
        cases(BACKUP, "a_backup_without_the_entry_of_its_checkpoint_takes_no_other_history"),
        ((", *numbers_of(CHECKPOINT, names)", ""),),
        deep=True,
    ),
    Guard(
        "lake.table.delta_log:_given_up",
        cases(LOG, "a_failure_is_reported_only_when_nothing_can_be_in_the_log"),
        (("if step.settled", "if True"),),
    ),
    Guard(
        "lake.table.delta_log:DeltaLog._opened",
        OPENING,
        (("content is None or not is_young(at_ms, answered_ms)", "content is None"),),
        deep=True,
    ),
    Guard("lake.table.delta_log:DeltaLog._refuse_hole", OPENING, deep=True),
    Guard("lake.table.delta_log:DeltaLog._from_checkpoint", OPENING, deep=True),
    Guard(
        "lake.table.delta_log:DeltaLog.refresh",
        cases(CHECKPOINT, "a_handle_that_slept_through_a_clean_up_goes_on"),
        (("if not is_young(self.view.known_ms, at_ms)", "if False"),),
        deep=True,
    ),
    Guard(
        "lake.table.delta_log:DeltaLog.refresh_if_older",
        cases(BACKUP, "a_window_is_refused_in_a_folder_whose_restored_log_ends_where_it_has_read"),
        ((" or self._is_freed()", ""),),
    ),
    Guard(
        "lake.table.delta_log:DeltaLog._is_freed",
        cases(
            CHECKPOINT,
            "a_freed_name_is_not_taken_for_the_end_of_the_log_by_any_clock",
            "a_checkpoint_that_is_written_late_does_not_hide_a_clean_up",
        ),
        (
            (
                "return not self._is_there(view.newest)",
                "return not self._root.exists(f'{self._folder}/{view.newest.name}')",
            ),
            ("self._has_checkpoint_after(view.checkpoint)", "not self._is_there(view.newest)"),
        ),
    ),
    Guard(
        "lake.table.delta_log:DeltaLog._has_checkpoint_after",
        cases(LOG, "what_was_listed_before_a_clean_up_is_listed_again"),
        (("return max(numbers_of(CHECKPOINT, names), default=-1) > version", "return False"),),
    ),
    # --- the commit of the lake ---
    Guard(
        "lake.commit.commit:commit_together",
        cases(
            LAKE,
            "a_commit_whose_outcomes_do_not_add_up_to_its_range_is_refused[one is missing]",
            "a_commit_that_expects_what_it_does_not_write_is_a_defect",
            "a_table_in_another_format_is_not_written",
        ),
        (
            ("check_evidence(proposal.ctl, tally_of_range)", "pass"),
            ("assert proposal.expect.keys() <= proposal.advance.keys()", "assert True"),
            ("shard.commitlog.check_format()", "pass"),
        ),
    ),
    Guard(
        "lake.commit.commit:_decided",
        cases(
            LAKE,
            "a_run_that_began_more_than_a_day_ago_is_refused",
            "a_commit_of_a_file_that_is_not_as_it_says_is_refused[gone]",
            "a_file_is_taken_out_once",
            "who_is_overtaken_between_the_decision_and_the_entry_is_told_by_whom",
        ),
        (
            ("check_age(member.proposal.ctl, member.started_ms, clocks.own_ms)", "pass"),
            ("shard.commitlog.check_staged(member.proposal.files)", "pass"),
            ("shard.commitlog.check_live(member.proposal.removed)", "pass"),
            ("overtaken(decision, member.proposal, positions, recent)", "decision"),
        ),
    ),
    Guard(
        "lake.commit.commit:_check_claim",
        cases(BACKUP, "a_window_that_outlives_a_restore_in_place_commits_nothing[folder]"),
    ),
    Guard(
        "lake.table.log_view:LogView.is_followed_by",
        cases(BACKUP, "a_window_that_outlives_a_restore_in_place_commits_nothing[as in S3]"),
        (("return not (entry.read_commit and self.commit_ids)", "return True"),),
    ),
    Guard(
        "lake.commit.commit:_content",
        cases(LAKE, "who_closes_a_prefix_is_overtaken_by_a_new_position_under_it", "a_file_is_taken_out_once"),
        (
            ("closed=[prefix for member in members for prefix in member.proposal.closed]", "closed=()"),
            ("removed={path for member in members for path in member.proposal.removed}", "removed=()"),
            ("for one in decisions for app_id, value in one.positions.items()", "for app_id, value in ()"),
        ),
    ),
    Guard(
        "lake.commit.commit:_appended",
        (*cases(LAKE, "who_is_overtaken_between_the_decision_and_the_entry_is_told_by_whom"), UNKNOWN),
        (
            ("if verdict is not Verdict.COMMITTED", "if False"),
            ("member.commit_id: _unknown(member, error)", "member.commit_id: _nothing_written(member, error)"),
        ),
    ),
    Guard("lake.table.delta_table:LakeTable._check_staged", cases(LAKE, OF_A_FILE)),
    Guard(
        "lake.table.delta_table:LakeTable._validate",
        cases(LAKE, OF_A_FILE, "a_commit_that_names_a_file_twice_is_refused"),
    ),
    Guard("lake.table.delta_table:LakeTable.check_live", cases(REPLACED, "a_file_is_replaced_once")),
    Guard("lake.table.delta_table:LakeTable.check_format", cases(LAKE, "a_table_in_another_format_is_not_written")),
    Guard(
        "lake.table.delta_table:LakeTable.put",
        cases(REPLACED, "a_file_is_replaced_once", "a_table_in_another_format_is_not_written"),
        (("self.check_format()", "pass"),),
    ),
    Guard(
        "lake.table.delta_table:LakeTable._read_checked",
        cases(COMPACT, "a_file_that_was_changed_is_not_joined"),
        deep=True,
    ),
    Guard(
        "lake.commit.cursor:refuse_other_history",
        cases(
            "tests/contract/test_derived_damage.py",
            "a_cursor_beyond_the_log_is_refused",
            "a_log_with_other_commits_under_the_same_versions_is_refused_and_mended",
        ),
        deep=True,
    ),
)
