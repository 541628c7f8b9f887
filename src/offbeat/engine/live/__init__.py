"""The engine for live federations."""
