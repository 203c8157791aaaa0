"""What a person reads: the page of a job's goodput, and the live view of a job.

    goodput_page.py  the page of `holdfast goodput --html`
    heat_map.py      straggler reports, folded to what a page can show
    live_frame.py    one frame of `holdfast top`, from values
    live_reading.py  these values, from boards and journals

Import from the modules; this package itself imports nothing.
"""
