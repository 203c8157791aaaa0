"""Warm start: ranks begin as forks of an interpreter that has imported what they import (docs/warm-start.md)."""
