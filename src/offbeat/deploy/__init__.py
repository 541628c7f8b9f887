"""A federation for real: what travels between a server and its sites, and what runs at either end."""
