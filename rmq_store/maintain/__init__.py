"""What keeps a store small and quick for years: which files to join, and what may be deleted."""
