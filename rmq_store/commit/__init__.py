"""The commit protocol without a store: positions, ctl rows, claims, request ids, and the decision to commit or to drop."""
