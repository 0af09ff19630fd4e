"""Maintenance of the tables: joining small files, and deleting what nothing needs any more."""
