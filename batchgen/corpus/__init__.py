"""From files to prompts: shards, rows read in bounded memory, templates, token ids."""
