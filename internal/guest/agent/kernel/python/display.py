# Values as text, HTML, images: display() and the value of a cell.


def clip(text, limit):
    if len(text) <= limit:
        return text
    head = limit * 3 // 4
    tail = limit - head
    return text[:head] + "\n... %d characters left out ...\n" % (len(text) - limit) + text[len(text) - tail:]


def to_json(value):
    """Encodes strings, ints, bools, None, lists and dicts of them as JSON."""
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, str):
        return quote(str(value))
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, dict):
        return "{" + ",".join(quote(k) + ":" + to_json(v) for k, v in value.items()) + "}"
    return "[" + ",".join(map(to_json, value)) + "]"


def encode(text):
    return text.encode("utf-8", "replace")


REPRS = (
    ("_repr_html_", "text/html"), ("_repr_markdown_", "text/markdown"), ("_repr_svg_", "image/svg+xml"),
    ("_repr_png_", "image/png"), ("_repr_jpeg_", "image/jpeg"), ("_repr_latex_", "text/latex"),
    ("_repr_json_", "application/json"),
)


def as_text(mime, value):
    """Converts a representation to a string, or None."""
    if isinstance(value, tuple) and value:
        value = value[0]  # (data, metadata)
    if value is None:
        return None
    if isinstance(value, (bytes, bytearray, memoryview)):
        import binascii
        return binascii.b2a_base64(value, newline=False).decode()
    if isinstance(value, str):
        return value
    import json
    return json.dumps(value, default=str)


def representations(obj):
    """The rich representations by MIME type, without those that raise."""
    data = {}
    kind = type(obj)
    if kind in SIMPLE or isinstance(obj, type):
        return data
    png = figure_png(obj)
    if png is not None:
        data["image/png"] = as_text("image/png", png)
        return data
    try:
        bundle = getattr(obj, "_repr_mimebundle_", None)
        if bundle is not None and callable(bundle):
            found = bundle(include=None, exclude=None)
            if isinstance(found, tuple):
                found = found[0]
            for mime, value in dict(found).items():
                text = as_text(mime, value)
                if text is not None:
                    data[str(mime)] = text
    except Exception:
        pass
    for name, mime in REPRS:
        if mime in data:
            continue
        try:
            method = getattr(obj, name, None)
            if method is None or not callable(method):
                continue
            text = as_text(mime, method())
            if text is not None:
                data[mime] = text
        except Exception:
            pass
    return data


SIMPLE = frozenset((int, float, complex, bool, str, bytes, bytearray, list, tuple, dict, set, frozenset, range, type(len), type(clip)))


def show(obj, result=False):
    """Displays one object. Errors of its repr are the caller's."""
    if S.child:
        print(repr(obj))
        return
    if S.displays >= MAX_DISPLAYS:
        S.dropped += 1
        return
    rich = representations(obj)
    if "text/plain" not in rich:
        rich["text/plain"] = repr(obj)
    publish(rich, result)


def publish(data, result=False):
    """Sends one display with the given representations."""
    if S.displays >= MAX_DISPLAYS:
        S.dropped += 1
        return
    whole = data.get("text/plain", "")
    data["text/plain"] = clip(whole, MAX_TEXT)
    if len(data) > MAX_REPRESENTATIONS:
        others = [m for m in data if m != "text/plain"]
        data = {m: data[m] for m in ["text/plain"] + others[:MAX_REPRESENTATIONS - 1]}
    if S.captured is not None:
        if len(S.captured) < MAX_DISPLAYS:
            S.captured.append(data)
        return
    while True:
        fields = {"result": True, "data": data} if result else {"data": data}
        if len(whole) > MAX_TEXT:
            fields["cut"] = True
        message = encode(to_json(fields))
        if len(message) <= MAX_DISPLAY:
            break
        # Drop the largest representation first; the plain text always fits.
        largest = max((m for m in data if m != "text/plain"), key=lambda m: len(data[m]))
        del data[largest]
    S.displays += 1
    emit(b"d", message)
    flush()


class Handle:
    """Result of display(…, display_id=…). A display cannot be replaced: an update is
    displayed as well."""

    def __init__(self, display_id):
        self.display_id = display_id

    def __repr__(self):
        return "<DisplayHandle display_id=%s>" % self.display_id

    def display(self, obj, **more):
        display(obj, **more)

    update = display


def display(*objects, include=None, exclude=None, metadata=None, display_id=None, raw=False, clear=False, **more):
    """Displays objects in their richest form, like the value of a cell's last line."""
    for obj in objects:
        if raw and isinstance(obj, dict):
            data = {}
            for mime, value in obj.items():
                text = as_text(mime, value)
                if text is not None:
                    data[str(mime)] = text
            publish(data)
        else:
            show(obj)
    if display_id is not None:
        return Handle(display_id)
