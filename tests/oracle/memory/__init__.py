"""The platform on Python lists: the same rules and commit protocol, without a table."""
