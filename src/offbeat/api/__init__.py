"""The functions that scripts call: simulate, repeat and compare."""
