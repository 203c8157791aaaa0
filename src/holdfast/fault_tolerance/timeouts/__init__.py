"""When is a rank hung? The timeouts of heartbeats and sections: configured, learned, in force, kept between jobs.

    observed_durations    what a rank measures, agreed over all ranks; what the steps of a job show
    learned_timeouts      the rule from durations to timeouts, and the documented state
    effective_timeouts    the timeouts that a job begins with, and those in force in a rank
    learning_conditions   when a training has seen enough to learn
    kept_timeouts         all ranks learn or none; the file between two jobs

The page of shared memory carries them as `board.Limits`; the monitor decides by it (`monitor.deadlines`).
"""
