"""When is a rank hung? The timeouts of heartbeats and sections: configured, learned, in force, kept between jobs.

The page of shared memory carries them as `board.Limits`; the monitor decides by it (`monitor.deadlines`).
"""
