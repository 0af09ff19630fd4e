"""Windows, deliveries and sends on the lake: planned, run as tasks on an engine, committed."""
