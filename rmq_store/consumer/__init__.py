"""RocketMQ's consumer: where to start, allocation, pull, listeners, consume results, delays, retries, dead letters."""
