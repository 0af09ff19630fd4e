"""A consumption window: which offsets it takes, and what it commits. Also the delivery of delayed messages."""
