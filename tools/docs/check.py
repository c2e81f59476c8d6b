"""A hook of mkdocs: the links of the built site lead to files and anchors that exist, and its pages load nothing from other hosts."""

import html.parser
import logging
import os
import re

log = logging.getLogger("mkdocs.check")  # with --strict each warning fails the build


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
    names = [os.path.join(d, n) for d, _, found in os.walk(config["site_dir"]) for n in found]
    for path in names:
        if path.endswith(".css"):
            with open(path, encoding="utf-8") as file:
                for address in re.findall(r"(?:@import|url\()\s*[\"']?((?:https?:)?//[^\"')\s]+)", file.read()):
                    log.warning("%s loads %s", path, address)
    pages = {path: Built(path) for path in names if path.endswith(".html") and not path.endswith("404.html")}
    for path, page in pages.items():
        for address in page.loaded:
            if re.match(r"(\w+:)?//", address):
                log.warning("%s loads %s", path, address)
        for address in page.links:
            name, _, anchor = address.partition("#")
            target = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
            if not re.match(r"\w+:", address) and (not os.path.exists(target) or target in pages and anchor not in pages[target].ids):
                log.warning("%s leads to %s, which does not exist", path, address)
