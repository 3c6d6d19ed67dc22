"""What a run tells while it works: progress on a clock, lines for the user, and the log file."""
