"""Training of many clients as one stack of vectors."""
