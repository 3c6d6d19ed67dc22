"""The job file: what it may say, where it says it, and what must stay equal for a resume."""
