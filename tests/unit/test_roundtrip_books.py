"""The round trip's check finds what is lost, doubled or unexpected. No broker here."""

from __future__ import annotations

import pytest

from tests.roundtrip.books import Delivery, Place, Sent, balance, read_ledger, repeatable

A, B, C = (Delivery("g", key) for key in "abc")


def test_each_delivery_finished_once_is_sound() -> None:
    result = balance(due=[A, B], possible=[C], finished=[A, B], repeats=[])
    assert result.sound
    assert result.tried == 2


@pytest.mark.parametrize(
    ("finished", "name"),
    [([A], "lost"), ([A, B, B], "doubled"), ([A, B, Delivery("g", "x")], "unexpected"), ([A, B, C, C], "doubled")],
)
def test_what_is_wrong_is_named(finished: list[Delivery], name: str) -> None:
    result = balance(due=[A, B], possible=[C], finished=finished, repeats=[])
    assert not result.sound
    assert len(getattr(result, name)) == 1
    assert sum(map(len, (result.lost, result.doubled, result.unexpected))) == 1


def test_what_a_kill_hands_out_again_is_repeated_and_not_doubled() -> None:
    result = balance(due=[A, B], possible=[], finished=[A, A, B], repeats=[A])
    assert result.sound
    assert result.repeated == (A,)


def test_a_read_at_or_behind_the_stored_offset_may_come_again() -> None:
    reads = [Place("g", key, "T", 0, offset) for offset, key in enumerate("abc")]
    assert repeatable(reads, {"g": {("T", 0): 1}}) == {B, C}
    assert repeatable(reads, {"g": {("T", 1): 9}}) == {A, B, C}
    assert repeatable(reads, {"g": {("T", 0): 3}}) == set()


def test_a_ledger_is_read_up_to_a_line_that_was_cut_off() -> None:
    sends = ["sending\ta\tT\tTagA\n", "sent\ta\tT\tTagA\n", "sending\tb\tT\tTagB\n"]
    ledger = read_ledger([*sends, "acked\tg\ta\tT\t0\t7\n", "acked\tg\tb"])
    assert ledger.sent == {Sent("a", "T", "TagA")}
    assert ledger.unsure == {Sent("b", "T", "TagB")}
    assert ledger.acked == [Place("g", "a", "T", 0, 7)]
    with pytest.raises(ValueError, match="no line of a ledger"):
        read_ledger(["what\tis\tthis\n"])
