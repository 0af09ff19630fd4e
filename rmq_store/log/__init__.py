"""RocketMQ's CommitLog and ConsumeQueue: their records and entries byte for byte, and the status of a read offset."""
