"""Hooks of mkdocs for the documentation site: the pages are written for GitHub, and are built as they are."""

import html.parser
import logging
import os
import posixpath
import re
import sys

log = logging.getLogger("mkdocs.hooks")  # with --strict each warning fails the build
root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def slug(text, separator):
    """The anchors are GitHub's: mkdocs would join several hyphens, and drop what is not ASCII."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", separator)


def on_config(config):
    sys.path.insert(0, os.path.dirname(__file__))
    import diagrams
    config["mdx_configs"]["toc"]["slugify"] = slug
    config["mdx_configs"]["pymdownx.superfences"] = {"custom_fences": [{"name": "mermaid", "class": "diagram", "format": diagrams.fence}]}


def on_page_markdown(markdown, page, config, files):
    """A link to a file that is no page leads to the repository. GitHub and mkdocs differ: in tables GitHub needs \\| also in code; two spaces are
    enough for it before a nested star; a table may follow a comment without an empty line."""
    def link(match):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_path), match[1]))
        if files.get_file_from_path(target) or not os.path.exists(os.path.join(root, target)):
            return match[0]  # if there is no such file at all, mkdocs warns
        return "](%s/%s/main/%s)" % (config["extra"]["repository"], "tree" if os.path.isdir(os.path.join(root, target)) else "blob", target)

    markdown = re.sub(r"\]\(([\w./-]+)\)", link, markdown)
    row = lambda line: re.sub(r"`[^`]*`", lambda code: code[0].replace("\\|", "|"), line[0])
    markdown = re.sub(r"^\|.*$", row, markdown, flags=re.M)
    return re.sub(r"(?<=-->\n)(?=\|)", "\n", re.sub(r"^  (?=\* )", "    ", markdown, flags=re.M))


class Built(html.parser.HTMLParser):
    """The ids and links of a built page, and the addresses of the files that a browser loads with it."""

    def __init__(self, path):
        super().__init__()
        self.ids, self.links, self.loaded = {""}, [], []
        with open(path, encoding="utf-8") as file:
            self.feed(file.read())

    def handle_starttag(self, tag, attributes):
        a = dict(attributes)
        self.ids.add(a.get("id"))
        (self.links if tag == "a" else self.loaded).extend(filter(None, (a.get("href"), a.get("src"))))


def on_post_build(config):
    """mkdocs checks no anchors, and a theme may load fonts and scripts from other hosts."""
    names = [os.path.join(d, n) for d, _, found in os.walk(config["site_dir"]) for n in found if n.endswith(".html") and n != "404.html"]
    pages = {path: Built(path) for path in names}
    for path, page in pages.items():
        for address in page.loaded:
            if re.match(r"(\w+:)?//", address):
                log.warning("%s loads %s", path, address)
        for address in page.links:
            name, _, anchor = address.partition("#")
            target = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
            if not re.match(r"\w+:", address) and (not os.path.exists(target) or target in pages and anchor not in pages[target].ids):
                log.warning("%s leads to %s, which does not exist", path, address)
