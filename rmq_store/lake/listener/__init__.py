"""A listener and its calls, in the process of the task or in one of its own."""
