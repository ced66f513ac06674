"""The first generation's client: one bare POST for each call, nothing before it.

usage: python3 bare.py URL
"""

import base64
import json
import sys
import urllib.error
import urllib.request

url = sys.argv[1]


def post(method, params=None):
    body = {"jsonrpc": "2.0", "id": 1, "method": method}
    if params is not None:
        body["params"] = params
    request = urllib.request.Request(
        url, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        assert response.status == 200, response.status
        assert response.headers["Content-Type"].startswith("application/json"), response.headers
        answer = json.load(response)
    assert answer["jsonrpc"] == "2.0" and answer["id"] == 1, answer
    return answer


def call(tool, **arguments):
    return post("tools/call", {"name": tool, "arguments": arguments})["result"]


names = {tool["name"] for tool in post("tools/list")["result"]["tools"]}
assert {"execute_code", "execute_command", "run_code"} <= names, names

made = call("execute_code", code="x = 41", template="python")
session = made["structuredContent"]["session_id"]
again = call("execute_code", code="print(x + 1)", session_id=session)
assert again["content"][0]["text"].startswith("42"), again
shell = call("execute_command", command="echo one two | wc -w", session_id=session)
assert shell["structuredContent"]["exit_code"] == 0, shell
failed = call("execute_code", code="1/0", session_id=session)
assert failed["isError"] and "ZeroDivisionError" in json.dumps(failed), failed
figure = call(
    "execute_code",
    code="import matplotlib.pyplot as plt; plt.plot([1, 4, 2]); plt.show()",
    session_id=session,
)
assert figure["structuredContent"]["figures"][0]["path"].startswith("/home/user/"), figure
images = [part for part in figure["content"] if part["type"] == "image"]
assert base64.b64decode(images[0]["data"]).startswith(b"\x89PNG\r\n\x1a\n"), figure

unknown = post("tools/call", {"name": "no_such_tool", "arguments": {}})
assert unknown["error"]["code"] == -32601, unknown
wrong = post("tools/call", {"name": "execute_code", "arguments": {"code": 7}})
assert wrong["result"]["isError"], wrong
assert wrong["result"]["_meta"]["glovebox/error"]["code"] == -32602, wrong

# A body that is no message is refused in JSON as well.
try:
    urllib.request.urlopen(
        urllib.request.Request(url, b"{", {"Content-Type": "application/json"}), timeout=60
    )
    raise AssertionError("half a message was taken")
except urllib.error.HTTPError as refused:
    assert refused.code == 400, refused.code
    assert json.load(refused)["error"]["code"] == -32700

# And what a browser or a probe would ask.
with urllib.request.urlopen(url, timeout=60) as response:
    status = json.load(response)
assert status["tools_count"] == len(names), status

assert call("stop_session", session_id=session)["structuredContent"]["success"], session
print("ok")
