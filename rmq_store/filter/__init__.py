"""RocketMQ's message filters: tags and SQL92 expressions."""
