"""What a person reads: the page of a job's goodput, and the live view of a job.

    goodput_page.py  the page of `holdfast goodput --html`
    heat_map.py      straggler reports, folded to what a page can show
    job.py           a job as it is now, from its run directory
    live_frame.py    one frame of `holdfast top`, from values
    live_reading.py  these values, from boards, and from job.py

Import from the modules; this package itself imports nothing.
"""
