"""The store of a broker into the lake: import and cut-over; and consumer offsets back to a broker."""
