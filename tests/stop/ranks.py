"""The program of ranks that train in lockstep, without torch, and ask at each boundary whether they stop there.

`begin` makes a rank's word known to all ranks of the job and waits for theirs, as a collective does. It works for
ranks of one machine, also of several launchers, that have the folder $NOTES in common.
"""

TRAINS = """
import mmap
from holdfast.fault_tolerance.stop import StopPoint, position

WORLD = int(os.environ["WORLD_SIZE"])
_handle = os.open(f"{os.environ['NOTES']}/begun-{CYCLE}", os.O_RDWR | os.O_CREAT)
os.ftruncate(_handle, 4096)
_begun = memoryview(mmap.mmap(_handle, 4096)).cast("q")

def begin(batch):
    _begun[RANK] = batch
    while any(other < batch for other in _begun[:WORLD]):
        time.sleep(0.0002)

point = StopPoint.find()
signal.signal(signal.SIGTERM, lambda number, frame: point.notice(number))

def train(batches=10**9, seconds=0.001):
    point.begin()
    for batch in range(1, batches + 1):
        begin(batch)
        time.sleep(seconds)
        if batch == 20:
            say("trains as", os.getpid())
        if point.passes(position(batch)):
            break
    left = point.deadline and point.deadline - time.monotonic()
    say("stopped after", batch, "wanted", point.wanted, "left", left)
    point.end()
"""
