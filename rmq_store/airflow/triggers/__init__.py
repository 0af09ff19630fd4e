"""What deferred tasks wait for, in the triggerer."""
