"""Delta tables on a folder or a bucket: the objects, the Delta log, the schema of each table, the root of a store."""
