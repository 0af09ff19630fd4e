import posix

posix._exit(7)
