"""RocketMQ's producer: what ``rmq send`` puts into the lake."""
