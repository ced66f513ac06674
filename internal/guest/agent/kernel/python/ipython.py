# A replacement for IPython's shell and displays, and IPython itself where it is
# installed.


class Shell:
    """Result of get_ipython(): enough for notebooks exported as programs. Everything
    else comes from IPython, where it is installed."""

    user_ns = property(lambda self: ns)

    def run_line_magic(self, name, line="", _stack_depth=1):
        return line_magic(name, line.strip(), sys._getframe(1))

    def run_cell_magic(self, name, line, cell):
        return cell_magic(name + " " + line, cell, 1)

    def magic(self, text):
        name, _, rest = text.lstrip("%").partition(" ")
        return line_magic(name, rest.strip(), sys._getframe(1))

    def system(self, command):
        shell(expand(command, sys._getframe(1)))

    def getoutput(self, command):
        return shell_output(expand(command, sys._getframe(1)))

    def __getattr__(self, name):
        # Libraries look for Jupyter's kernel and for representations without needing
        # IPython, which takes long to start.
        if name == "kernel" or name.startswith("_"):
            raise AttributeError(name)
        ipython = interactive_shell()
        if ipython is None:
            raise AttributeError("%s: IPython is not installed here" % name)
        return getattr(ipython, name)
def interactive_shell():
    """IPython's shell where it is installed, for magics that only it has."""
    if S.ipython is None:
        S.ipython = False
        try:
            from IPython.core.interactiveshell import InteractiveShell
            from traitlets.config import Config
        except ImportError:
            return None
        config = Config()
        config.HistoryManager.enabled = False
        config.InteractiveShell.colors = "NoColor"
        hook, users = sys.excepthook, dict(ns)
        S.ipython = InteractiveShell.instance(config=config, user_module=main, user_ns=ns)
        sys.excepthook = hook
        # IPython adds names of its own to the user's. Its empty _ would hide the last
        # value, and its exit() ends nothing here; its magics need only _dh and the
        # like.
        for name in ("_", "__", "___", "In", "Out", "exit", "quit", "open", "get_ipython"):
            ns.pop(name, None)
            if name in users:
                ns[name] = users[name]
        S.ipython.display_pub.publish = lambda data, *args, **more: publish({m: as_text(m, v) for m, v in data.items()})
    return S.ipython or None


def display_module(module):
    """Fills a module with what notebooks import from IPython.display."""

    def kind(name, mime, method):
        class Shown:
            def __init__(self, data=None, url=None, filename=None, **more):
                if filename is None and isinstance(data, (str, os.PathLike)) and name in ("Image", "SVG") and len(str(data)) < 4096 and os.path.exists(data):
                    filename, data = data, None
                if filename is not None:
                    with open(filename, "rb") as f:
                        data = f.read()
                    if name != "Image":
                        data = data.decode("utf-8")
                if url is None and name == "Image" and isinstance(data, str):
                    url, data = data, None
                if url is not None:
                    import urllib.request
                    with urllib.request.urlopen(url) as f:
                        data = f.read()
                self.data, self.metadata = data, more

            def __repr__(self):
                return "<IPython.core.display.%s object>" % name

            def _repr_mimebundle_(self, include=None, exclude=None):
                if name == "Image":
                    return {"image/jpeg" if self.data[:2] == b"\xff\xd8" else "image/png": self.data}
                return {mime: self.data}
        Shown.__name__ = Shown.__qualname__ = name
        setattr(module, name, Shown)

    for name, mime in (("HTML", "text/html"), ("Markdown", "text/markdown"), ("SVG", "image/svg+xml"), ("Latex", "text/latex"),
                       ("JSON", "application/json"), ("Image", "image/png"), ("Pretty", "text/plain"), ("Javascript", "application/javascript"), ("Code", "text/plain")):
        kind(name, mime, None)

    class Math(module.Latex):
        def _repr_mimebundle_(self, include=None, exclude=None):
            return {"text/latex": "$\\displaystyle %s$" % str(self.data).strip("$")}
    module.Math = Math
    module.display = display
    module.display_html = lambda *objs, **more: display(*[module.HTML(o) if isinstance(o, str) else o for o in objs])
    module.display_markdown = lambda *objs, **more: display(*[module.Markdown(o) if isinstance(o, str) else o for o in objs])
    module.clear_output = lambda wait=False: None
    module.update_display = lambda obj, **more: display(obj)
