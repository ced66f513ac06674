"""A bare Jupyter kernel on request: each line on stdin is one execute of
print(1), answered on stdout by its round trip in milliseconds, from execute()
until both the reply and the idle status are there. "start" starts a new kernel
instead and answers by the time until its first result."""
import sys
import time

from jupyter_client.manager import start_new_kernel


def once(client):
    begun = time.perf_counter()
    message = client.execute("print(1)")
    while True:
        m = client.get_iopub_msg(timeout=60)
        if (m["parent_header"].get("msg_id") == message and m["msg_type"] == "status"
                and m["content"]["execution_state"] == "idle"):
            break
    while client.get_shell_msg(timeout=60)["parent_header"].get("msg_id") != message:
        pass
    return (time.perf_counter() - begun) * 1e3


manager, client = start_new_kernel(kernel_name="python3", extra_arguments=["--log-level=50"])
for line in sys.stdin:
    if line.strip() == "start":
        begun = time.perf_counter()
        other, its = start_new_kernel(kernel_name="python3", extra_arguments=["--log-level=50"])
        once(its)
        print((time.perf_counter() - begun) * 1e3, flush=True)
        its.stop_channels()
        other.shutdown_kernel(now=True)
    else:
        print(once(client), flush=True)
client.stop_channels()
manager.shutdown_kernel(now=True)
