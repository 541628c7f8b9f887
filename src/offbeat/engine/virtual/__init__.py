"""The engine for virtual time."""
