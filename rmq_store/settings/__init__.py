"""Groups and topics as ``consumers.toml`` describes them."""
