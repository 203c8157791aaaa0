"""Holdfast inside other people's programs: a package for each. Importing this one loads nothing."""
