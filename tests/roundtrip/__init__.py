"""A round trip with a real RocketMQ broker: ``python -m tests.roundtrip``, or ``make roundtrip``."""
