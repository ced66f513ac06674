# Figures of matplotlib.

shown = []  # ids of figures that were displayed as values in this cell


def is_figure(obj):
    figure = sys.modules.get("matplotlib.figure")
    try:
        return figure is not None and isinstance(obj, figure.Figure)
    except Exception:
        return False


def figure_png(obj):
    """PNG of a matplotlib figure, None for anything else."""
    if not is_figure(obj):
        return None
    png = render(obj)
    shown.append(obj)
    return png


def render(fig):
    dpi = fig.dpi
    width, height = fig.get_size_inches()
    box = "tight"
    try:
        # A label far outside the axes makes the tight box huge.
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        canvas = fig.canvas if hasattr(fig.canvas, "get_renderer") else FigureCanvasAgg(fig)
        tight = fig.get_tightbbox(canvas.get_renderer())
        if tight.width > 4 * width + 10 or tight.height > 4 * height + 10:
            box = None
        else:
            width, height = max(width, tight.width + 0.2), max(height, tight.height + 0.2)
    except Exception:
        pass
    if width * height * dpi * dpi > MAX_PIXELS:
        dpi = (MAX_PIXELS / (width * height)) ** 0.5
    for _ in range(6):
        buf = io.BytesIO()
        fig.canvas.print_figure(buf, format="png", dpi=dpi, bbox_inches=box)
        if buf.tell() <= MAX_DISPLAY // 2:
            break
        dpi = dpi / 1.6
    return buf.getvalue()


def show_figures(*args, **kwargs):
    """Displays and closes all open figures: plt.show, and the end of a cell."""
    plt = sys.modules.get("matplotlib.pyplot")
    if plt is None or not hasattr(plt, "get_fignums"):
        return
    try:
        for number in plt.get_fignums():
            fig = plt.figure(number)
            if any(fig is f for f in shown):
                continue
            if not fig.get_axes() and not fig.texts and not fig.images and not fig.lines and not fig.patches:
                continue  # plt.figure() and nothing drawn
            if S.displays >= MAX_DISPLAYS:
                S.dropped += 1
                continue
            png = render(fig)
            publish({"image/png": as_text("image/png", png), "text/plain": repr(fig)})
    finally:
        del shown[:]
        plt.close("all")
