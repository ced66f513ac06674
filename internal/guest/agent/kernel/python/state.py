# The Python kernel: runs cells in __main__ and reports the results.
#
# The files of the kernel are joined in the order of scripts.go and executed as one
# script, with globals of its own (a copy of the builtins among them): nothing that
# user code does to its namespace or to the builtins affects it, and it keeps what
# it needs at run time under names of its own. transform.py and the files of magics
# join these globals at their first use.
#
# Descriptors: 3 commands in, 4 control out, 5 events out; 6 and 7 are the read ends
# of the pipes behind 1 and 2, which the agent reads (we only ask how full they
# are); 9 is memory shared with the agent: the event buffer, for the first events of
# a run, and the agent's position in these pipes.
#
# Any statement of user code may install a signal handler that raises, and the
# interrupt raises too, so every function here may be left at any call. State that
# must not be lost between two statements (how much of a message is written) is
# therefore recorded inside one call of C code; see pump.
import sys, io, builtins, time, posix, _ast, _thread, _signal, fcntl, select
from _json import encode_basestring as quote

monotonic = time.monotonic
write, read, getpid, hard_exit = posix.write, posix.read, posix.getpid, posix._exit
dup2, fstat, sleep, ioctl = posix.dup2, posix.fstat, time.sleep, fcntl.ioctl

FILE = "<glovebox>"
MAX_HELD = 64 << 10          # output of threads between two runs
MAX_EVENT = 1 << 20          # one output message
MAX_TEXT = 256 << 10         # one text/plain
MAX_MODULES = 5000           # installed modules compared to the name of a missing one
MAX_TRACEBACK = 64 << 10
MAX_VALUE = 8 << 10
MAX_DISPLAYS = 40            # per run, as protocol.MaxDisplays
MAX_DISPLAY = 8 << 20        # its JSON
MAX_REPRESENTATIONS = 64     # of one display
MAX_FRAMES = 2000            # of one traceback
MAX_SOURCES = 32 << 20       # cells kept for tracebacks
MAX_PIXELS = 4000000
MAX_TRIES = 1000             # a second; see position
FIONREAD = 0x541b
ORDER = sys.byteorder

main = sys.modules["__main__"]
ns = main.__dict__
saved_builtins = dict(builtins.__dict__)
mtext = io.TextIOWrapper


def high(fd):
    """Moves a descriptor out of the range that user code uses; closed on exec."""
    for low in (900, 200, 50, 10):
        try:
            new = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, low)
        except (OSError, ValueError):
            continue
        posix.close(fd)
        return new
    return fd


class State:
    pass


S = State()
S.child = False        # this is a fork made by user code
S.running = False      # user code runs: an interrupt raises KeyboardInterrupt in it
S.active = False       # between R and D: events may be sent
S.busy = False         # in flush, which must not be reentered
S.pending = []         # (type, bytes), not yet framed
S.size = 0
S.flushed = 0.0        # time of the last flush
S.tx = None            # frames being written to EVENTS
S.reply = None         # message being written to CONTROL
S.at = 0               # end of this run's events in the event buffer
S.marked = [0, 0]      # positions of the last mark
S.run = 0
S.cell = 0
S.displays = 0
S.captured = None      # a list receives the displays
S.dropped = 0
S.loop = None
S.task = None
S.task_cancelled = False
S.trace = S.profile = None
S.flags = 0            # __future__ flags so far
S.last = None          # what the kernel put into builtins._
S.ipython = None
sources = {}           # file name → lines of the cell
sources_size = 0
