# Converts IPython's syntax beyond Python's to calls: shell lines, magics, questions.
# Text in, text out: it runs in the globals of the kernel and uses none of them.
#
# A cell may be any text, prose included, so everything here takes time linear in its
# length. Patterns are single character classes, and each character is examined a few
# times at most.
import re

CALL = "__glovebox__"  # in the builtins: called by replaced lines
CODE_STOP = re.compile(r"""['"#()\[\]{}\\=]""")
STRING_STOP = re.compile(r"""['"\\]""")
BLANKS = re.compile(r"[ \t]*")
INSTALLERS = frozenset(("pip", "pip3", "conda", "mamba", "uv"))
INSTALLER_VERBS = frozenset(("install", "uninstall", "list", "show", "freeze"))


def transform(source):
    """The source as Python, line for line, or None if there is nothing of IPython's
    in it."""
    lines = source.split("\n")
    first = next((i for i, line in enumerate(lines) if line.strip()), None)
    if first is None:
        return None
    changed = remove_indent(lines, first)
    changed = remove_prompts(lines, first) or changed
    head = lines[first]
    if head.startswith("%%") and (head[2:3] in ("!", "_") or head[2:3].isalpha()):
        name, _, rest = head[2:].partition(" ")
        call = (CALL, "%%", name.strip() + " " + rest.strip(), "\n".join(lines[first + 1:]), first + 1)
        return "\n" * first + "%s(%r, %r, %r, %d)" % call
    state = LineState()
    i = first
    while i < len(lines):
        found = escaped_line(lines[i]) if state.starts_statement() else None
        if found is None:
            found = state.feed(lines[i])
        if found is None:
            i += 1
            continue
        before, kind, text = found
        parts, end = [text], i + 1
        while kind != "?" and parts[-1].endswith("\\") and end < len(lines):
            parts.append(lines[end])
            end += 1
        lines[i] = "%s%s(%r, %r)" % (before, CALL, kind, "\n".join(parts))
        lines[i + 1:end] = [""] * (end - i - 1)
        changed = True
        i = end
    return "\n".join(lines) if changed else None


def remove_indent(lines, first):
    """Takes the indentation of the first line from all lines that have it."""
    line = lines[first]
    indent = line[:len(line) - len(line.lstrip(" \t"))]
    if not indent:
        return False
    for i, line in enumerate(lines):
        if line.startswith(indent):
            lines[i] = line[len(indent):]
    return True


def remove_prompts(lines, first):
    """Takes away the prompts of a copied session: >>> and ..., or In [1]: and ...:"""
    if after_prompt(lines[first], "first") is None:
        return False
    for i, line in enumerate(lines):
        at = after_prompt(line)
        if at is not None:
            lines[i] = line[at:]
    return True


def after_prompt(line, which="any"):
    for prompt in (">>>",) if which == "first" else (">>>", "..."):
        if line.startswith(prompt) and line[3:4] in ("", " "):
            return 4
    if line.startswith("In ["):
        digits = len(line) - 4 - len(line[4:].lstrip("0123456789"))
        if digits and line.startswith("]:", 4 + digits):
            return 4 + digits + 3
    elif which == "any" and line.startswith(" "):
        dots = line.lstrip(" ")
        at = len(dots) - len(dots.lstrip("."))
        if at >= 3 and dots.startswith(":", at):
            return len(line) - len(dots) + at + 2
    return None


def escaped_line(line):
    """(what goes before, kind, text) of a statement that is one shell line, magic or
    question, else None."""
    text = line.lstrip()
    before = line[:len(line) - len(text)]
    if text.startswith("!"):
        kind = "!!" if text.startswith("!!") else "!"
        rest = text[len(kind):].lstrip()
        return (before, kind, rest) if rest and text[len(kind)] not in "=%" else None
    if text.startswith("%"):
        word = text.rstrip()
        if word.endswith("?") and is_word_start(word.lstrip("%")[:1]) and len(word.split(None, 1)) == 1:
            return before, "?", word.rstrip("?")
        rest = text[1:].lstrip()
        if is_word_start(rest[:1]) or text.startswith("%%") and is_word_start(text[2:3]):
            return before, "%", rest
        return None
    name = question(text)
    if name is not None:
        return before, "?", name
    words = text.split(None, 3)
    if words and words[0] in INSTALLERS:
        verb = 2 if words[1:2] == ["pip"] else 1
        if words[verb:verb + 1] and words[verb] in INSTALLER_VERBS:
            return before, "%" if words[0].startswith("pip") else "!", text
    return None


def is_word_start(c):
    return c == "_" or c.isalpha()


def question(text):
    """The name that is asked for by ?name, name?, ??name or name??, else None."""
    text = text.rstrip()
    if text.endswith(";"):
        text = text[:-1].rstrip()
    name = text.lstrip("?") if text.startswith("?") else text.rstrip("?")
    if not 1 <= len(text) - len(name) <= 2:
        return None
    name = name.lstrip()
    return name if all(part.isidentifier() for part in name.split(".")) else None


class LineState:
    """What is open at the end of a line of Python: a string, brackets, a backslash."""

    def __init__(self):
        self.depth, self.quote, self.continued = 0, "", False

    def starts_statement(self):
        return not (self.depth or self.quote or self.continued)

    def feed(self, line):
        """Reads the next line. For name = !command and name = %magic it returns
        what escaped_line does."""
        self.continued = False
        k, n = 0, len(line)
        while k < n:
            stop = (STRING_STOP if self.quote else CODE_STOP).search(line, k)
            if stop is None:
                k = n
                break
            k = stop.start()
            c = line[k]
            if self.quote:
                if c == "\\":
                    k += 2
                elif line.startswith(self.quote, k):
                    k += len(self.quote)
                    self.quote = ""
                else:
                    k += 1
                continue
            if c == "#":
                break
            if c in "'\"":
                self.quote = c * 3 if line.startswith(c * 3, k) else c
                k += len(self.quote)
                continue
            if c in "([{":
                self.depth += 1
            elif c in ")]}":
                self.depth = max(self.depth - 1, 0)
            elif c == "\\":
                self.continued = k == n - 1
            elif not self.depth and not (k and line[k - 1] in "=!<>:+-*/%&|^@~"):
                at = BLANKS.match(line, k + 1).end()
                mark = line[at:at + 1]
                if mark == "!" or mark == "%":
                    text = BLANKS.match(line, at + 1).end()
                    c = line[text:text + 1]
                    if is_word_start(c) or mark == "!" and c and not (c == "=" and text == at + 1):
                        return line[:k + 1] + " ", "=" + mark, line[text:]
            k += 1
        if len(self.quote) == 1 and k <= n:
            self.quote = ""  # it ends with its line, unless a backslash continues it
        return None
