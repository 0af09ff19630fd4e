"""What operators do: reset, skip, clone, import offsets, replay, compare, redrive, delete a group, trace a message."""
