"""Helpers that are independent of RocketMQ: clock and ids, times, numbers, ranges, small files, redaction of
secrets."""
