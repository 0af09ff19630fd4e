"""RocketMQ's message: its fields, ids, properties, flags and checks, and the texts and hashes of Java that they rest on."""
