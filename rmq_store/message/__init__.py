"""RocketMQ's message: fields, ids, properties, flags and checks, and the Java texts and hashes that they need."""
