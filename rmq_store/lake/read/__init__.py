"""Messages out of the tables: by queue and offset, by time, by id or key, filtered."""
