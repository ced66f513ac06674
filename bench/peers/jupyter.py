"""A bare Jupyter kernel on request: each line on stdin is answered by one on
stdout. "run CODE" executes CODE and answers by its round trip in milliseconds,
from execute() until both the reply and the idle status are there. "start" starts
another kernel and answers by the time until its first result."""
import sys
import time

from jupyter_client.manager import start_new_kernel


def new():
    return start_new_kernel(kernel_name="python3", extra_arguments=["--log-level=50"])


def once(client, code):
    begun = time.perf_counter()
    message = client.execute(code)
    while True:
        m = client.get_iopub_msg(timeout=60)
        if (m["parent_header"].get("msg_id") == message and m["msg_type"] == "status"
                and m["content"]["execution_state"] == "idle"):
            break
    while True:
        m = client.get_shell_msg(timeout=60)
        if m["parent_header"].get("msg_id") == message:
            break
    if m["content"]["status"] != "ok":
        raise RuntimeError(m["content"])
    return (time.perf_counter() - begun) * 1e3


manager, client = new()
try:
    for line in sys.stdin:
        verb, _, code = line.rstrip("\n").partition(" ")
        if verb == "start":
            begun = time.perf_counter()
            other, its = new()
            try:
                once(its, "print(1)")
                took = (time.perf_counter() - begun) * 1e3
            finally:
                its.stop_channels()
                other.shutdown_kernel(now=True)
            print(took, flush=True)
        else:
            print(once(client, code), flush=True)
finally:
    client.stop_channels()
    manager.shutdown_kernel(now=True)
