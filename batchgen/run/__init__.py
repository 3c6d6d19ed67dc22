"""One execution of a job; `job.py` is the file to open first."""
