"""What a callback sends."""
