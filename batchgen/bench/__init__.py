"""Measurements on the job's own rows: ways to batch (compare) and how many rows at once (tune)."""
