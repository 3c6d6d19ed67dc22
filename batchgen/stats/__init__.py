"""Numbers about a run: a record per batch, and what was measured to fill it."""
