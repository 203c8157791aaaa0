"""The truths, a file for each family. Pure values, stated before the rules that are scored with them."""
