"""The settings of consumer groups in ``consumers.toml``, with RocketMQ's names and defaults."""
