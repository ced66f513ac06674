# Sources of cells, and tracebacks.


def remember(name, linecache=None):
    """Lets tracebacks, warnings and inspect find the cell's source."""
    linecache = linecache or sys.modules.get("linecache")
    try:
        lines = sources[name]
        linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    except Exception:
        pass


def split(source):
    """Lines as Python counts them; splitlines knows more line endings."""
    return [line + "\n" for line in source.split("\n")]


def keep_source(name, source):
    global sources_size
    sources[name] = split(source)
    sources_size += len(source)
    while sources_size > MAX_SOURCES and len(sources) > 1:
        old = next(iter(sources))
        sources_size -= sum(map(len, sources.pop(old)))
        cache = getattr(sys.modules.get("linecache"), "cache", None)
        if cache:
            cache.pop(old, None)
    if "linecache" in sys.modules:
        remember(name)


def strip(tb):
    """The traceback without the kernel's frames and those between them and the
    cell, and not deeper than MAX_FRAMES."""
    entries = []
    while tb is not None:
        entries.append(tb)
        tb = tb.tb_next
    for i, entry in enumerate(entries):
        name = entry.tb_frame.f_code.co_filename
        if name.startswith("<cell ") or name in sources:
            entries = entries[i:]
            break
    entries = [e for e in entries if e.tb_frame.f_code.co_filename != FILE]
    if len(entries) > MAX_FRAMES:
        entries = entries[:MAX_FRAMES // 2] + entries[-MAX_FRAMES // 2:]
    after = None
    for entry in reversed(entries):
        entry.tb_next = after
        after = entry
    return after


def strip_all(error):
    seen = []
    todo = [error]
    while todo and len(seen) < 1000:
        e = todo.pop()
        if e is None or any(e is s for s in seen):
            continue
        seen.append(e)
        e.__traceback__ = strip(e.__traceback__)
        todo.extend((e.__cause__, e.__context__))
        todo.extend(getattr(e, "exceptions", None) or () if hasattr(saved_builtins.get("BaseExceptionGroup"), "split") else ())


def near_module(error):
    """The installed module whose name is like that of a missing one, or None. Python
    suggests names of this kind itself from 3.15 on."""
    name = getattr(error, "name", None)
    if type(error) is not ModuleNotFoundError or type(name) is not str or "." in name:
        return None
    try:
        import difflib, itertools, pkgutil
        found = (m.name for m in itertools.islice(pkgutil.iter_modules(), MAX_MODULES))
        known = {n for n in itertools.chain(getattr(sys, "stdlib_module_names", ()), found) if not n.startswith("_") and n != name}
        return next(iter(difflib.get_close_matches(name[:100], known, 1, 0.8)), None)
    except Exception:
        return None


def format_error(error):
    """(name, value, traceback) of an exception, without fail."""
    name = type(error).__name__
    try:
        value = str(error)
    except BaseException:
        value = "<exception str() failed>"
    text = None
    for attempt in range(2):
        try:
            strip_all(error)
            import traceback, linecache
            for file in sources:
                if file not in linecache.cache:
                    remember(file, linecache)
            if isinstance(error, SystemExit):
                text = "SystemExit: " + value + "\n"
                break
            parts = list(traceback.TracebackException(type(error), error, error.__traceback__).format())
            text = "".join(parts)
            near = near_module(error)
            if near and text.endswith(value + "\n"):
                text = text[:-1] + ". Did you mean: %r?\n" % near
            break
        except BaseException:
            repair()
    if text is None:
        text = "%s: %s\n" % (name, value)
    return clip(name, 256), clip(value, MAX_VALUE), clip(text, MAX_TRACEBACK)


def repair():
    """Restores builtins and modules that user code removed."""
    have = builtins.__dict__
    for name in saved_builtins:
        if name not in have or (have[name] is not saved_builtins[name] and name not in ("_", "input", "__import__", "open", "print")):
            have[name] = saved_builtins[name]
    for name in saved_modules:
        if name not in sys.modules:
            sys.modules[name] = saved_modules[name]
