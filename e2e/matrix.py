"""The barest client: a request a line or a POST, without params where it needs none.

usage: python3 matrix.py < SERVERS (as matrix.mjs)
"""

import json
import subprocess
import sys
import urllib.request

INITIALIZE = {
    "protocolVersion": "2024-11-05",
    "capabilities": {},
    "clientInfo": {"name": "bare", "version": "1"},
}


class Http:
    def __init__(self, server):
        self.url = server["url"]

    def ask(self, message):
        request = urllib.request.Request(
            self.url, json.dumps(message).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            return json.load(response)

    def close(self):
        pass


class Stdio:
    def __init__(self, server):
        self.process = subprocess.Popen(
            [server["command"], *server["args"]],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=server["env"], text=True,
        )
        self.ask({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": INITIALIZE})
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, message):
        self.process.stdin.write(json.dumps(message) + "\n")
        self.process.stdin.flush()

    def ask(self, message):
        self.send(message)
        while True:
            line = self.process.stdout.readline()
            assert line, "the server has ended"
            answer = json.loads(line)
            if answer.get("id") == message["id"]:
                return answer

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(60) == 0, self.process.returncode


def visit(server):
    client = Http(server) if "url" in server else Stdio(server)
    try:
        asked = 0

        def ask(method, **rest):
            nonlocal asked
            asked += 1
            answer = client.ask({"jsonrpc": "2.0", "id": asked, "method": method, **rest})
            assert "result" in answer, (method, answer)
            return answer["result"]

        assert ask("ping") == {}
        for listing in ("prompts", "resources"):
            assert ask(listing + "/list")[listing] is not None
        tools = ask("tools/list")["tools"]
        name = next(t["name"] for t in tools if t["name"].endswith("execute_code"))

        def call(code):
            content = ask("tools/call", params={"name": name, "arguments": {"code": code, "session_id": server["session"]}})["content"]
            return [part["text"] for part in content if part["type"] == "text"]

        return {
            "name": server["name"],
            "tools": [{"name": t["name"], "properties": "properties" in t["inputSchema"]} for t in tools],
            "figures": call("print(6 * 7)"),
            "failure": call("1 / 0"),
            "quiet": call("x = 1"),
        }
    finally:
        client.close()


def tried(server):
    try:
        return visit(server)
    except Exception as error:
        return {"name": server["name"], "error": repr(error)}


print(json.dumps([tried(server) for server in json.load(sys.stdin)]))
