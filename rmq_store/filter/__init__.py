"""Which messages a subscription takes: tags and SQL92 expressions."""
