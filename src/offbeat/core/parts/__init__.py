"""Components that two or more strategies share: frozen dataclasses of settings, and plain state."""
