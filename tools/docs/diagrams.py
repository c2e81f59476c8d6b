"""The diagrams of the pages as SVG. The pages have them as Mermaid, which GitHub draws; here Graphviz draws charts and states, and sequences are
drawn below, so that no script is loaded. It knows the part of Mermaid that the pages use, and fails at another one."""

import html
import logging
import re
import subprocess
import textwrap

LINKS = {  # operator: attributes of Graphviz
    "---": "arrowhead=none", "-->": "", "<-->": "dir=both", "-.->": "style=dashed",
}


def fence(source, language, css_class, options, md, **kwargs):
    """The formatter of a fence of pymdownx.superfences, which shows the code if this fails: the warning fails the build."""
    try:
        return drawn(source, css_class)
    except Exception as err:
        logging.getLogger("mkdocs.diagrams").warning("a diagram cannot be drawn: %s %s: %s", err, getattr(err, "stderr", ""), source)
        raise


def drawn(source, css_class):
    kind, *lines = [line.strip() for line in source.strip().split("\n")]
    svg = sequence(lines) if kind == "sequenceDiagram" else chart(kind, lines)
    width = int(re.search(r'width="(\d+)', svg)[1])
    # On a telephone a wide diagram is scrolled: its text could not be read at the width of the screen.
    return '<div class="%s">%s</div>' % (css_class, svg.replace("<svg ", '<svg style="min-width:%dpx" ' % min(width, 560), 1))


def wrapped(text, width):
    return [line for part in re.split("<br>", text) for line in textwrap.wrap(part, width, break_long_words=False) or [""]]


def quoted(text, width=30):
    return '"%s"' % "\\n".join(wrapped(text, width)).replace('"', '\\"')


def chart(kind, lines):
    """flowchart, graph and stateDiagram-v2."""
    direction = (kind.split() + ["TB"])[1] if "state" not in kind else "TB"
    nodes, groups, edges, texts, stack = {}, {}, [], [], [""]

    def node(text):
        text = text.strip()
        if text == "[*]":  # the begin and the end of states are not one node
            text = "state%d" % len(nodes)
            nodes[text] = ("", "shape=point width=0.15", stack[-1])
        name, shape, label = re.fullmatch(r'(\w+)(\[\(|\[|\{|)(?:"(\d+)")?[\])}]*', text).groups()
        if label or (name not in nodes and name not in groups):
            nodes[name] = (texts[int(label)] if label else name, {"[(": "shape=cylinder", "{": "shape=hexagon"}.get(shape, ""), stack[-1])
        return name

    for line in lines:
        line = re.sub(r'"([^"]*)"', lambda m: texts.append(m[1]) or '"%d"' % (len(texts) - 1), line)
        if line.startswith("subgraph"):
            name, label = re.fullmatch(r'subgraph (\w+)\["(\d+)"\]', line).groups()
            groups[name] = (texts[int(label)], stack[-1])
            stack.append(name)
        elif line == "end":
            stack.pop()
        elif line.startswith("direction"):
            pass  # Graphviz has one direction for a whole graph
        else:
            label = ""
            if "state" in kind and ": " in line:
                line, label = line.split(": ", 1)
            if label and " " not in line:  # the description of a state
                nodes[line] = (label, "", "")
                continue
            # A -- "text" --> B and A -. text .-> B are A -->|text| B
            line = re.sub(r'(<?)--\s*"(\d+)"\s*(-->|---)', lambda m: m[1] + m[3] + "|" + m[2] + "|", line)
            line = re.sub(r'-\.\s*"?([\w ]+?)"?\s*\.->', lambda m: "-.->|%s|" % m[1], line)
            parts = re.split(r"\s*(<-->|-->|---|-\.->)(?:\|([^|]*)\|)?\s*", line)
            ends = [[node(n) for n in part.split(" & ")] for part in parts[::3]]
            for before, after, operator, said in zip(ends, ends[1:], parts[1::3], parts[2::3]):
                said = texts[int(said)] if (said or "").isdigit() else said or label
                edges += [(a, b, LINKS[operator], said) for a in before for b in after]

    def inside(name, which):  # a node that stands for a group: Graphviz has no edges between groups
        return name if name in nodes else [n for n, (_, _, group) in nodes.items() if group == name][which]

    def body(group):
        for name, (label, attributes, within) in nodes.items():
            if within == group:
                yield '"%s" [label=%s %s]' % (name, quoted(label), attributes)
        for name, (label, within) in groups.items():
            if within == group:
                yield "subgraph cluster_%s { label=%s; %s }" % (name, quoted(label, 60), "\n".join(body(name)))

    out = ['digraph { rankdir=%s; compound=true; bgcolor=transparent; nodesep=0.4; ranksep=0.5; margin=0' % direction,
           'graph [fontname="DejaVu Sans" fontsize=12]; node [shape=box style=rounded fontname="DejaVu Sans" fontsize=12]; edge [fontname="DejaVu Sans" fontsize=10.5 arrowsize=0.8]']
    out += body("")
    for a, b, attributes, label in edges:
        ends = "".join(" %s=cluster_%s" % (end, name) for end, name in (("ltail", a), ("lhead", b)) if name in groups)
        out.append('"%s" -> "%s" [label=%s %s%s]' % (inside(a, -1), inside(b, 0), quoted(label, 26), attributes, ends))
    svg = subprocess.run(["dot", "-Tsvg"], input="\n".join(out) + "}", capture_output=True, text=True, check=True).stdout
    svg = re.sub(r"<title>.*?</title>|<!--.*?-->", "", svg[svg.index("<svg"):], flags=re.S)
    return re.sub(r'="(\d+)pt"', r'="\1"', svg)


def sequence(lines):
    """sequenceDiagram: a column for each participant, a row for each message and note."""
    columns, events = {}, []
    for line in lines:
        if line.startswith("participant"):
            name, label = re.fullmatch(r"participant (\w+) as (.*)", line).groups()
            columns[name] = label
            last = name
        elif line == "end" or line.split()[0] in ("alt", "else", "loop", "opt"):
            events.append((line.split()[0], [], line))
        elif line.startswith("Note over"):
            name, text = re.fullmatch(r"Note over (\w+(?:, ?\w+)?): (.*)", line).groups()
            events.append(("note", re.split(", ?", name), text))
        else:
            a, arrow, b, text = re.fullmatch(r"(\w+)(-?->>|--x)(\w+): (.*)", line).groups()
            events.append((arrow, [a, b], text))
    gap = 330 if len(columns) == 2 else 250
    at = {name: gap // 2 + gap * i for i, name in enumerate(columns)}
    out, y, frames = [], 60, []

    def text(x, top, said, anchor="middle"):
        for i, line in enumerate(said):
            out.append('<text x="%d" y="%d" text-anchor="%s" font-size="12">%s</text>' % (x, top + 15 * i, anchor, html.escape(line)))

    for kind, ends, said in events:
        if kind == "end":
            begin = frames.pop()
            out.append('<rect class="frame" x="%d" y="%d" width="%d" height="%d"/>' % (4 + 6 * len(frames), begin, gap * len(columns) - 8 - 12 * len(frames), y - begin))
            y += 16
            continue
        if not ends:  # a frame begins, or is divided
            if kind == "else":
                out.append('<path class="frame" stroke-dasharray="5 4" d="M4 %d H%d"/>' % (y, gap * len(columns) - 4))
            else:
                frames.append(y)
            text(12 + 6 * len(frames), y + 15, [said], "start")
            y += 28
            continue
        x, end = at[ends[0]], at[ends[-1]]
        said = wrapped(said, gap // 8)
        high = 15 * len(said)
        if kind == "note":
            out.append('<rect class="note" x="%d" y="%d" width="%d" height="%d"/>' % (x - gap * 0.47, y, end - x + gap * 0.94, high + 10))
            text((x + end) // 2, y + 17, said)
            y += high + 24
        elif x == end:
            side = -1 if x == at[last] else 1  # that of the last column is on its left
            text(x + 46 * side, y + 14, said, "end" if side < 0 else "start")
            out.append('<path class="line" d="M%d %d h%d v16 h%d" marker-end="url(#arrow)"/>' % (x, y + 6, 36 * side, -34 * side))
            y += max(high, 22) + 16
        else:
            y += high + 6
            text((x + end) // 2, y - high + 5, said)
            to = end + (8 if end < x else -8) * (kind == "--x")
            out.append('<path class="line" d="M%d %d H%d" %s marker-end="url(#%s)"/>' % (x, y, to, 'stroke-dasharray="5 4"' if kind.startswith("--") else "", "lost" if kind == "--x" else "arrow"))
            y += 18
    width, lives = gap * len(columns), []
    for name, x in at.items():
        lives.append('<path class="life" d="M%d 40 V%d"/><rect class="head" x="%d" y="4" width="%d" height="36" rx="4"/>' % (x, y, x - gap * 0.47, gap * 0.94))
        out.append('<text x="%d" y="27" text-anchor="middle" font-size="12">%s</text>' % (x, html.escape(columns[name])))
    marks = '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path d="M0 0 L8 4 L0 8 z"/></marker>' \
            '<marker id="lost" viewBox="0 0 8 8" refX="4" refY="4" markerWidth="9" markerHeight="9"><path class="line" d="M0 0 L8 8 M0 8 L8 0"/></marker></defs>'
    return '<svg class="sequence" width="%d" height="%d" viewBox="0 0 %d %d">\n%s\n</svg>' % (width, y + 4, width, y + 4, "\n".join([marks] + lives + out))
