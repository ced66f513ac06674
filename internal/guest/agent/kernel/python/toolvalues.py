# Values that programs pass to tools, as JSON.

def plain_value(value):
    """Values of common libraries as JSON: numbers and arrays of NumPy, tables of
    pandas, dates, paths."""
    for method in ("tolist", "isoformat", "__fspath__"):
        if hasattr(value, method):
            return getattr(value, method)()
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, (set, frozenset, collections.abc.ValuesView, collections.abc.KeysView)):
        return list(value)
    raise TypeError("a value of type %s cannot be passed to a tool: convert it to numbers, text, lists and dicts" % type(value).__name__)


MAX_DEPTH = 100  # of values in which an odd number is searched


def odd_number(value, path, depth):
    """Returns the path and the value of a number that JSON does not have: nan, or an
    infinity; None if there is none."""
    if isinstance(value, float):
        return (path, value) if value != value or value in (math.inf, -math.inf) else None
    if depth == 0 or value is None or isinstance(value, (str, int)):
        return None
    if isinstance(value, dict):
        inner = ((path + "." + str(key) if path and str(key).isidentifier() else str(key) if str(key).isidentifier() else "%s[%r]" % (path, key), v) for key, v in value.items())
    elif isinstance(value, (list, tuple)):
        inner = (("%s[%d]" % (path, i), v) for i, v in enumerate(value))
    else:
        inner = ((path, plain_value(value)),)
    for where, one in inner:
        found = odd_number(one, where, depth - 1)
        if found is not None:
            return found
    return None
