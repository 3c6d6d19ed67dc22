"""The command line: commands, their options, and the one object that prints."""
