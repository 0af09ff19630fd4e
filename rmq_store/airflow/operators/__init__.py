"""One operator for each action on a store."""
