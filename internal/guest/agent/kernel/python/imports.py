# Hooks into the import of modules.


def hook_linecache(module):
    for name in sources:
        remember(name, module)


def hook_pyplot(module):
    show_figures.__name__ = show_figures.__qualname__ = "show"
    module.show = show_figures


def hook_display(module):
    """Without IPython's shell, IPython's display would print."""
    if hasattr(module, "display"):
        module.display = display
    if hasattr(module, "clear_output"):
        module.clear_output = lambda wait=False: None


def hook_pandas(module):
    """Shows tables whole up to a bound. As for a terminal of 80 characters, pandas would leave
    out columns in the middle, and a model would not know them. Other values than those of
    pandas are the user's."""
    for option, values, value in (("display.max_columns", (0, 20), 30), ("display.width", (80,), 160)):
        try:
            if module.get_option(option) in values:
                module.set_option(option, value)
        except Exception:
            pass


HOOKS = {
    "pandas": hook_pandas,
    "linecache": hook_linecache, "matplotlib.pyplot": hook_pyplot,
    "IPython.core.display_functions": hook_display, "IPython.core.display": hook_display,
}
STUBS = ("IPython", "IPython.display")  # notebooks import the latter


class StubLoader:
    @staticmethod
    def create_module(spec):
        return None

    @staticmethod
    def exec_module(module):
        if module.__name__ == "IPython":
            module.get_ipython = lambda: None
            module.version_info, module.__version__ = (8, 0, 0, ""), "8.0.0"
        else:
            extras()
            display_module(module)


class Finder:
    """Calls a hook after the import of one of HOOKS."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name not in HOOKS and name not in STUBS:
            return None
        if name == "IPython.display" and getattr(sys.modules.get("IPython"), "__loader__", None) is not StubLoader:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is Finder or find is None:
                continue
            spec = find(name, path, target)
            if spec is not None:
                break
        else:
            if name not in STUBS:
                return None
            return type(sys.__spec__)(name, StubLoader, origin=FILE, is_package=name == "IPython")
        if name in STUBS:
            return spec
        loader, hook = spec.loader, HOOKS[name]
        execute = loader.exec_module

        def exec_module(module):
            execute(module)
            hook(module)
        try:
            loader.exec_module = exec_module
        except AttributeError:
            pass
        return spec


class LateSite:
    """The last finder: adds the user's site-packages directory, which Python ignores
    if it is created after the start, as by pip."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        site = sys.modules.get("site")
        if path is not None or site is None or not site.ENABLE_USER_SITE:
            return None
        where = site.getusersitepackages()
        if where in sys.path or not os.path.isdir(where):
            return None
        site.addsitedir(where)
        from importlib.machinery import PathFinder
        PathFinder.invalidate_caches()
        return PathFinder.find_spec(name, None, target)
