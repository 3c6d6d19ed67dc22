"""What a run was: collected from its directory, drawn as HTML, terminal text or JSON."""
