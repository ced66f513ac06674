# Executing the source of a cell, and interrupting it.


def on_sigint(number, frame):
    if not S.running:
        return
    task, loop = S.task, S.loop
    if task is not None and not task.done():
        asyncio = sys.modules.get("asyncio")
        if asyncio is not None and asyncio.current_task(loop) is None:
            # The loop sleeps: end the cell where it awaits.
            S.task_cancelled = True
            task.cancel()
            loop.call_soon_threadsafe(int)
            return
    raise KeyboardInterrupt


def event_loop():
    import asyncio
    loop = S.loop
    if loop is None or loop.is_closed():
        loop = S.loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


def run_async(coro):
    import asyncio
    loop = event_loop()
    tb = None

    async def body():
        nonlocal tb
        try:
            return await coro
        except asyncio.CancelledError as e:
            tb = e.__traceback__  # the task's own error does not have it in all versions
            raise
    task = S.task = loop.create_task(body())
    S.task_cancelled = False
    try:
        return loop.run_until_complete(task)
    except asyncio.CancelledError as e:
        if not S.task_cancelled:
            raise
    except BaseException:
        # Raised in the loop itself: the cell's task still has to end.
        if not task.done():
            task.cancel()
            loop.run_until_complete(asyncio.wait([task], timeout=1))
            if task.done() and not task.cancelled():
                task.exception()
        raise
    finally:
        S.task = None
    interrupt = KeyboardInterrupt()
    interrupt.__traceback__ = tb
    raise interrupt


CO_COROUTINE = 0x80
TOP_LEVEL_AWAIT = 0x2000
ONLY_AST = 0x400
FUTURES = 0x1fe0000  # every flag of the __future__ module, in all versions
LOOP_WORDS = ("create_task", "ensure_future", "get_running_loop")


def evaluate(code):
    """Runs a code object in the user's namespace."""
    if S.trace is not None or S.profile is not None:
        sys.settrace(S.trace)
        sys.setprofile(S.profile)
    S.flags |= code.co_flags & FUTURES
    if code.co_flags & CO_COROUTINE:
        return run_async(eval(code, ns))
    if any(word in code.co_names for word in LOOP_WORDS):
        async def inside():
            return eval(code, ns)
        return run_async(inside())
    return eval(code, ns)


def parse(source, name):
    return compile(source, name, "exec", ONLY_AST | TOP_LEVEL_AWAIT | S.flags, True)


def quiet(source, node):
    """Whether a semicolon follows the last expression."""
    lines = split(source)
    try:
        rest = lines[node.end_lineno - 1].encode()[node.end_col_offset:].decode() + "".join(lines[node.end_lineno:])
    except (IndexError, AttributeError):
        return False
    return rest.lstrip(" \t\r\n)\\").startswith(";")


def decode(code, name):
    try:
        source = code.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        raise SyntaxError("(unicode error) %s" % e, (name, 1 + code.count(b"\n", 0, e.start), 1, None)) from None
    if "\0" in source:
        at = source.index("\0")
        raise SyntaxError("source code cannot contain null bytes", (name, 1 + source.count("\n", 0, at), at - source.rfind("\n", 0, at), None))
    return source.replace("\r\n", "\n").replace("\r", "\n") if "\r" in source else source


def cell(code, name):
    source = decode(code, name)
    keep_source(name, source)
    execute(source, name)


def expression(source, name):
    """Compiles a source that is one expression on one line, otherwise returns None:
    half the work of the general case. A backslash may cause a warning, which
    would appear twice."""
    if "\n" not in source and "\\" not in source:
        try:
            return compile(source, name, "eval", TOP_LEVEL_AWAIT | S.flags, True)
        except SyntaxError:
            pass


def execute(source, name, showing=True):
    """Runs the source of a cell and shows its value."""
    code = expression(source, name)
    if code is not None:
        finish_with(code, showing)
        return
    tree = None
    try:
        tree = parse(source, name)
        failure = None
    except SyntaxError as e:
        failure = e
    if failure is not None:
        # Not Python: perhaps a shell line or a magic.
        extras()
        source = transform(source)
        if source is None:
            failure.__traceback__ = None
            raise failure
        tree = parse(source, name)
    body = tree.body
    last = None
    if body and isinstance(body[-1], _ast.Expr) and not quiet(source, body[-1]):
        last = body.pop()
    flags = TOP_LEVEL_AWAIT | S.flags
    if body:
        code = compile(tree, name, "exec", flags, True)
        # A __future__ statement of this cell applies to its last expression too.
        flags |= code.co_flags & FUTURES
        evaluate(code)
    if last is not None:
        code = compile(_ast.Expression(body=last.value), name, "eval", flags, True)
        tree = body = None
        finish_with(code, showing)


def finish_with(code, showing):
    """Evaluates the last expression of a cell and shows its value."""
    value = evaluate(code)
    if value is not None and not S.child:
        remember_value(value)
        if showing:
            flush_streams()
            show(value, True)


def remember_value(value):
    have = builtins.__dict__
    if have.get("_", S.last) is not S.last:
        return  # gettext's, or the user's own
    for new, old in (("___", "__"), ("__", "_")):
        if old in have:
            have[new] = have[old]
    have["_"] = S.last = value
