"""What a run leaves on disk: the journal, the parts made from it, and the ways to read them."""
