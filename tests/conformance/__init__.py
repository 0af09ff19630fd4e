"""Our code against what RocketMQ itself said: ``python -m tests.conformance DIR``, one module per kind of file."""
