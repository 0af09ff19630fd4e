"""The audit: what proves that a store holds what its commits wrote, all of it, each message once."""
