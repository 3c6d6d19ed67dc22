"""Engines turn token ids into completions; one protocol, `batchgen.protocols.Engine`, for all."""
