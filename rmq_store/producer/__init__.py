"""RocketMQ's producer: the checks, queue and stored form of messages that ``rmq send`` writes into the lake."""
