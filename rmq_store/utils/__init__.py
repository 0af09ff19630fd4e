"""Helpers that know nothing of messages: the host (clock, chance, ids), times, numbers, ranges, redaction of secrets."""
