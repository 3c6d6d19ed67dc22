"""In which order rows reach the engine, and how: ordering, dedupe, feeds."""
