"""Pieces that two or more papers share. Each is a frozen dataclass of settings, a plain state, or both."""
