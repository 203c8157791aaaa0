"""A program that tells everything about its process that a script could see. Run as script, module, or folder."""
