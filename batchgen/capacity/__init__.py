"""What a model needs and a device gives: bytes, arithmetic, and the time a job takes at least."""
