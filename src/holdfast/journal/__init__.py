"""The event log of a job, and its readings. Import from the modules; this package itself imports nothing."""
