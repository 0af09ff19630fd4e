"""The files of a RocketMQ broker: commit log, consume queues, configuration, offsets. Read, and offsets written back."""
