"""What people look at: `kept` reads the straggler reports in a job's journal, `text` and `plot` show them."""
