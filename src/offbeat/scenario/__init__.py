"""The world the clients live in: data, who holds which of it, models, delays, availability."""
