"""Second implementations that only tests run: what the product does is compared with what these say.

``memory`` is a whole engine on Python lists; ``projection`` tells what the tables must hold; the offset stores and the
request checks are RocketMQ's own, for the vectors of a real broker.
"""
