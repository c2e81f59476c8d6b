"""Hooks of mkdocs for the documentation site: the pages are written for GitHub, and are built as they are."""

import os
import posixpath
import re
import sys

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
