"""The hook, which reads the connection."""
