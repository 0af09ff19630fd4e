"""Tasks that wait for a state of a store."""
