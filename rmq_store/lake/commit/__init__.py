"""The commit protocol on Delta tables, and the derived tables that follow each commit."""
