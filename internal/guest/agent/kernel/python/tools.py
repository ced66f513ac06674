# Calls of the host's tools: tools.server.tool(...) and call_tool(...). The kernel gets
# this file with the first run that may call.
import collections.abc, itertools, json, math, socket, threading, weakref

MAX_WAITING = 64  # calls of this process at the same time; the agent takes 256 of a box
gate = threading.BoundedSemaphore(MAX_WAITING)
bridge = None     # how the current run calls; None: it may not


class ToolError(Exception):
    """A call of a tool failed. code says how; see the attributes server, tool and
    signature for what was called."""

    def __init__(self, message, code="tool_error", server=None, tool=None, signature=None):
        super().__init__(message)
        self.message, self.code, self.server, self.tool, self.signature = message, code, server, tool, signature

    def __str__(self):
        where = ".".join(part for part in (self.server, self.tool) if part)
        text = "%s [%s]" % (self.message, self.code)
        if where:
            text = where + ": " + text
        if self.signature:
            text += "\n  " + self.signature
        return text

    def __repr__(self):  # asyncio.gather(return_exceptions=True) returns errors in lists
        return "ToolError(%r)" % str(self).partition("\n  ")[0]

    __module__ = "builtins"  # where programs find it

    def __reduce__(self):
        return ToolError, (self.message, self.code, self.server, self.tool, self.signature)


LINK_CODES = {"lost": "interrupted", "cancelled": "interrupted", "too_large": "invalid_arguments", "invalid": "invalid_arguments", "not_allowed": "denied"}


CODE_MODE_OFF = ("code mode is off for this connection: code cannot call tools, and nothing was called. Call %s directly instead, without code. "
                 "To switch code mode on, connect without ?codemode=false to a Glovebox that was started with --tools")

def encode_call(method, payload):
    if bridge is None:
        server, tool = payload.get("server"), payload.get("tool") or payload.get("name")
        raise ToolError(CODE_MODE_OFF % (".".join(str(part)[:200] for part in (server, tool) if part) or "the tools of your servers"), "denied", server, tool)
    try:
        text = json.dumps(payload, default=plain_value, allow_nan=False, ensure_ascii=False)
    except ValueError:
        found = odd_number(payload.get("arguments"), "", MAX_DEPTH)
        if found is None:  # another fault, such as a list in itself
            raise
        raise ToolError("invalid arguments: %s: JSON has no number %s; pass None or leave it out" % (found[0][:200], found[1]),
                        "invalid_arguments", payload.get("server"), payload.get("tool", payload.get("name"))) from None
    try:
        body = text.encode("utf-8")
    except UnicodeEncodeError as e:  # of a file name that is no text, for example
        raise ToolError("invalid arguments: a string has the lone surrogate %s, which no tool can receive; pass s.encode('utf-8', 'replace').decode()"
                        % ascii(text[e.start]), "invalid_arguments", payload.get("server"), payload.get("tool", payload.get("name"))) from None
    header = {"token": bridge["token"], "method": method, "length": len(body)}
    return json.dumps(header).encode() + b"\n" + body


def decode_answer(data):
    line, newline, body = bytes(data).partition(b"\n")
    header = json.loads(line) if newline else {}
    failure = header.get("error")
    if failure:
        raise ToolError(failure["message"], LINK_CODES.get(failure["code"], failure["code"]))
    if not newline or len(body) != header["length"]:
        raise ToolError("the connection to the host ended during the call; whether the tool ran is unknown", "interrupted")
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as e:  # numbers of thousands of digits, deep nesting
        raise ToolError("the tool ran, and Python cannot read its result: %s" % e) from None


def exchange(data):
    """Sends a call and returns the answer. Leaving it early cancels the call."""
    with gate, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
        answer = bytearray()
        try:
            s.connect(bridge["socket"])
            s.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass  # an answer that refuses the call may be there
        except OSError as e:
            raise ToolError("connect to the host: %s" % e, "unavailable") from None
        try:
            while chunk := s.recv(1 << 18):
                answer += chunk
        except ConnectionResetError:
            pass
        return decode_answer(answer)


async def exchange_async(data):
    import asyncio
    loop = asyncio.get_running_loop()
    waiting = getattr(loop, "glovebox_gate", None)
    if waiting is None:
        waiting = loop.glovebox_gate = asyncio.Semaphore(MAX_WAITING)
    async with waiting:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as s:
            s.setblocking(False)
            answer = bytearray()
            try:
                await loop.sock_connect(s, bridge["socket"])
                await loop.sock_sendall(s, data)
            except (BrokenPipeError, ConnectionResetError):
                pass
            except OSError as e:
                raise ToolError("connect to the host: %s" % e, "unavailable") from None
            try:
                while chunk := await loop.sock_recv(s, 1 << 18):
                    answer += chunk
            except ConnectionResetError:
                pass
            return decode_answer(answer)


def take_value(answer):
    failure = answer.get("error")
    if failure:
        raise ToolError(failure.get("message", ""), failure.get("code", "tool_error"), failure.get("server"), failure.get("tool"), failure.get("signature"))
    return answer.get("value")


def in_loop():
    asyncio = sys.modules.get("asyncio")
    return asyncio is not None and asyncio._get_running_loop() is not None


MAX_UNAWAITED = 1000
numbers = itertools.count()
unawaited = {}  # name and weak reference of the calls that have not begun, by their numbers


MAX_LEFT = 1000
left = []  # names of the calls that the run left before the answer came


def perform_now(data, name):
    try:
        return take_value(exchange(data))
    except KeyboardInterrupt:  # a time-out, or an interrupt by the user
        note_left(name)
        raise


def note_left(name):
    if len(left) < MAX_LEFT:
        left.append(name)


def report_calls():
    """Returns notes about the calls of the run that ends which were not awaited or not
    waited for; None if there are none."""
    notes = [note for note in (report_left(), report_unawaited()) if note]
    return "\n".join(notes) or None


def listed(names):
    return ", ".join(dict.fromkeys(names[:5])) + (", ..." if len(names) > 5 else "")


def report_left():
    names = left[:]
    left.clear()
    if not names:
        return None
    if len(names) == 1:
        return "Note: 1 tool call was still in progress and was cancelled; the tool may have run, unless a note says otherwise: " + listed(names)
    return "Note: %d tool calls were still in progress and were cancelled; the tools may have run, unless a note says otherwise: %s" % (len(names), listed(names))


def report_unawaited():
    names = [name for name, _ in unawaited.values()]
    for _, reference in list(unawaited.values()):
        call = reference()
        if call is not None:
            call.expire()
    unawaited.clear()
    if not names:
        return None
    if len(names) == 1:
        return "Note: 1 tool call was not awaited and did not run: " + listed(names)
    return "Note: %d tool calls were not awaited and did not run: %s" % (len(names), listed(names))


class PendingCall(collections.abc.Coroutine):
    """A call in async code. It begins when it is awaited."""

    def __init__(self, coroutine, name):
        self._coroutine, self._name = coroutine, name
        self._number = next(numbers)
        self._begun = self._expired = False
        if len(unawaited) < MAX_UNAWAITED:
            unawaited[self._number] = name, weakref.ref(self)

    def expire(self):
        """Ends the call, which has not begun: its run is over."""
        self._expired = True
        self._coroutine.close()

    def _begin(self):
        self._begun = True
        unawaited.pop(self._number, None)
        if self._expired:
            raise ToolError("%s was not awaited in the run that called it and did not run; call it again" % self._name, "interrupted")

    def __del__(self):
        # Python would warn that the coroutine was never awaited; the run's note does.
        if not self._begun:
            self._coroutine.close()

    def send(self, value):
        self._begin()
        return self._coroutine.send(value)

    def throw(self, *args):
        return self._coroutine.throw(*args)

    def close(self):
        return self._coroutine.close()

    def __await__(self):
        self._begin()
        return self._coroutine.__await__()

    def _misused(self, *args):
        raise TypeError("%s(...) was called in async code, so its value has to be awaited: await %s(...)" % (self._name, self._name))

    __getitem__ = __iter__ = __len__ = __contains__ = __bool__ = __int__ = __float__ = __add__ = __radd__ = _misused
    __str__ = __format__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _misused
    __hash__ = object.__hash__  # asyncio.gather puts calls in a dict

    def __getattr__(self, name):
        if name.startswith(("_", "cr_", "gi_")):  # asyncio looks for these when it shows a task
            raise AttributeError(name)
        self._misused()

    def __repr__(self):
        return "<call of %s, not awaited>" % self._name


def perform(method, payload, name):
    """Calls now, or in async code returns what is to be awaited."""
    data = encode_call(method, payload)
    if not in_loop():
        return perform_now(data, name)

    async def call():
        import asyncio
        try:
            return take_value(await exchange_async(data))
        except asyncio.CancelledError:
            note_left(name)
            raise
    call.__qualname__ = call.__name__ = name
    return PendingCall(call(), name)


def call_tool(name, arguments=None, /, **more):
    """Calls the tool "server.tool" with a dict of arguments and returns its value. In
    async code: await call_tool(...)."""
    return perform("tool", {"name": name, "arguments": given({**(arguments or {}), **more})}, "call_tool")


def given(arguments):
    """Drops the arguments that are ..., which stands for an absent one in signatures."""
    return {name: value for name, value in arguments.items() if value is not ...}


def ask_now(method, payload):
    """For what is not worth awaiting: search, describe, completion."""
    return take_value(exchange(encode_call(method, payload)))


class Text(str):
    """Text that is shown as it is."""

    def __repr__(self):
        return str(self)

    def __await__(self):  # it needs no await, and takes one
        return self
        yield


class Lines(list):
    """Lines that are shown as they are. notes are not among them, and shown as well."""

    def __init__(self, lines, notes):
        super().__init__(lines)
        self.notes = notes

    def __repr__(self):
        return "\n".join([*self, *self.notes])

    __str__ = __repr__
    __await__ = Text.__await__


def tool_path(*names):
    """The Python expression for a server or tool, as in tools.files["read.me"]."""
    return "tools" + "".join("." + n if n.isidentifier() else "[%r]" % n for n in names)


class Tool:
    def __init__(self, server, name):
        self._server, self._name = server, name

    def __call__(self, *args, **arguments):
        if args:
            if len(args) > 1 or not isinstance(args[0], dict):
                raise TypeError("%r takes keyword arguments: %s" % (self, tools.describe(self).partition("\n")[0]))
            arguments = {**args[0], **arguments}
        return perform("tool", {**self._called(), "arguments": given(arguments)}, tool_path(self._server, self._name))

    def _called(self):
        return {"server": self._server, "tool": self._name}

    def __getattr__(self, name):
        if name == "__signature__":
            return self._signature()
        if name.startswith("_"):
            raise AttributeError(name)
        raise AttributeError("the tool %s.%s has no attribute %r: %s" % (self._server, self._name, name, self._uncalled(name)))

    def __getitem__(self, key):
        raise TypeError("the tool %s.%s has no items: %s" % (self._server, self._name, self._uncalled(key)))

    __iter__ = __contains__ = None  # otherwise Python counts through __getitem__

    def _uncalled(self, key):
        """How to get a part of the result, and a tool whose name goes on with the key."""
        path = tool_path(self._server, self._name)
        hint = "call it first, as in r = %s(name=value); r[%r]" % (path, key)
        if isinstance(key, str):
            hint += ". If there is a tool %r, it is %s" % (self._name + "." + key, tool_path(self._server, self._name + "." + key))
        return hint

    def _signature(self):
        import inspect
        known = ask_now("describe", {"names": [self._server + "." + self._name], "detail": "full"})[0]
        kinds = {"integer": int, "number": float, "string": str, "boolean": bool, "array": list, "object": dict}
        return inspect.Signature([
            inspect.Parameter(p["name"], inspect.Parameter.KEYWORD_ONLY, annotation=kinds.get(p.get("type"), inspect.Parameter.empty),
                              default=inspect.Parameter.empty if p.get("required") else p.get("default"))
            for p in known.get("parameters", []) if p["name"].isidentifier()])

    @property
    def __doc__(self):
        try:
            return str(tools.describe(self))
        except ToolError as e:
            return str(e)

    def __repr__(self):
        return tool_path(self._server, self._name)


class Dotted(Tool):
    """What tools["a.b"] means: the tool b of the server a, or the server a.b."""

    def _called(self):
        return {"name": "%s.%s" % (self._server, self._name)}  # the host knows the servers

    def __getattr__(self, name):
        if name.startswith("_"):
            return super().__getattr__(name)
        return self[name]

    def __getitem__(self, name):
        return Tool("%s.%s" % (self._server, self._name), text_of(name))


def text_of(name):
    if not isinstance(name, str):
        raise TypeError("a name must be a str, not %s" % type(name).__name__)
    return name


class Server:
    __iter__ = __contains__ = None  # otherwise Python counts through __getitem__, without end

    def __init__(self, name):
        self._name = name

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return Tool(self._name, name)

    def __getitem__(self, name):
        return Tool(self._name, text_of(name))

    def __call__(self, *args, **arguments):
        # No tool is called: the host's error names the servers that have a tool of this name.
        return perform("tool", {"server": self._name, "tool": ""}, "tools.%s" % self._name)

    def __dir__(self):
        return [t["identifier"] for t in ask_now("catalog", {"server": self._name})]

    def __repr__(self):
        names = dir(self)
        if not names:  # the host says why: there is no such server, or it cannot be used
            try:
                names = [str(tools.describe(self, detail="names"))]  # a rule denies all of them
            except ToolError as e:
                return "tools.%s: %s" % (self._name, e.message)
        return "tools.%s: %s" % (self._name, ", ".join(names))


class Function(Server):
    """A function of tools, and the server of the same name, if there is one: the call
    tools.search("words") is the function, tools.search.web(q="words") a tool."""

    def __init__(self, function):
        import functools
        super().__init__(function.__name__)
        functools.update_wrapper(self, function)

    def __call__(self, *args, **arguments):
        return self.__wrapped__(*args, **arguments)

    def __repr__(self):
        return "<function tools.%s>" % self._name


class Tools:
    """The tools of the user's servers: tools.server.tool(name=value)."""

    __iter__ = __contains__ = None

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)
        return Server(name)

    def __getitem__(self, name):
        server, dot, tool = text_of(name).partition(".")
        return Dotted(server, tool) if dot else Server(name)

    def __dir__(self):
        return ["search", "describe"] + sorted({t["server_identifier"] for t in ask_now("catalog", {})})

    def __repr__(self):
        return "tools of the servers %s" % ", ".join(self.__dir__()[2:])

    @Function
    def search(query="", limit=10):
        """Returns a line for each of the tools that match words, the best first: its
        signature and first sentence."""
        found = ask_now("search", {"query": query, "limit": limit})
        return Lines([Text(t["line"]) for t in found if t["name"]], [t["line"] for t in found if not t["name"]])

    @Function
    def describe(*names, detail="full"):
        """Returns the signatures and documentation of tools ("server.tool") or of all
        tools of a server ("server"); detail="schema" returns their JSON schemas."""
        for n in names:
            if isinstance(n, (list, tuple, set)):
                raise TypeError("tools.describe takes each name as an argument: describe(*names), not a %s of them" % type(n).__name__)
        names = [n._server + "." + n._name if isinstance(n, Tool) else n._name if isinstance(n, Server) else text_of(n) for n in names]
        return Text("\n\n".join(t["text"] for t in ask_now("describe", {"names": names, "detail": detail})))


tools = Tools()


def offer_tools(setup):
    """Lets the run that follows call, or for null refuses its calls."""
    global bridge
    bridge = json.loads(setup)
    environ = os.environ
    if bridge is None:
        for name in ("GLOVEBOX_TOOLS", "GLOVEBOX_TOOLS_TOKEN"):
            environ.pop(name, None)
        return
    environ["GLOVEBOX_TOOLS"], environ["GLOVEBOX_TOOLS_TOKEN"] = bridge["socket"], bridge["token"]
    if bridge["bin"] not in environ.get("PATH", "").split(":"):
        environ["PATH"] = environ.get("PATH", "/usr/local/bin:/usr/bin:/bin") + ":" + bridge["bin"]
    for name, value in (("tools", tools), ("call_tool", call_tool), ("ToolError", ToolError)):
        setattr(builtins, name, value)
