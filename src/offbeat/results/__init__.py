"""Tables, figures, pages and explanations of recorded runs."""
