"""Holds `inject_fault`. Logging, profiling and health checks of the original are not offered."""
