"""Links from a task to the console."""
