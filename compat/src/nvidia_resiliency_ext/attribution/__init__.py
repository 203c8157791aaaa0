"""Where newer programs look for `straggler` first. The analysis of logs is not offered."""
