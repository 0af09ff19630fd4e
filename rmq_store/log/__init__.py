"""The records of a commit log and the entries of a consume queue, byte for byte, and what reading them answers."""
