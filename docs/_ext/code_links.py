"""Links from code in the text: `training.image_folder(…)` to the reference, `benchmarks/lab/maps.py` to its page."""

import re

from docutils import nodes
from generated import ROOT, page_of
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

NAME = re.compile(r"(?:vit_keras\.)?([A-Za-z_][\w.]*)(\(.*)?", re.DOTALL)
FILE = re.compile(r"(?:docs|tools|examples|tests|benchmarks)/[\w./-]+\.\w+")


class CodeLinks(SphinxPostTransform):
    """Make references of literals that name what has a page."""

    default_priority = 20

    def run(self, **kwargs):
        known = self.names()
        for node in list(self.document.findall(nodes.literal)):
            inside = node.parent
            while inside is not None and not isinstance(inside, (nodes.reference, nodes.title)):
                inside = inside.parent
            if inside is not None or (self.env.docname.startswith("reference/") and "." not in node.astext()):
                continue
            target = self.target(node.astext(), known)
            if target and target[0] != self.env.docname:
                link = make_refnode(self.app.builder, self.env.docname, *target, node.deepcopy())
                node.replace_self(link)

    def names(self):
        """Return `{name: (page, anchor)}`, where a name may stand without `vit_keras.` or without its module."""
        if not hasattr(self.env, "vit_keras_names"):
            known = {}
            for full, entry in self.env.domains["py"].objects.items():
                if entry.objtype in ("function", "class", "data", "exception"):
                    parts = full.split(".")[1:]
                    for start in range(len(parts)):
                        known.setdefault(".".join(parts[start:]), (entry.docname, entry.node_id))
                        if entry.aliased:
                            break
            self.env.vit_keras_names = known
        return self.env.vit_keras_names

    def target(self, text, known):
        """Return the page and anchor of what a literal names, or `None`."""
        file = FILE.search(text)
        if file and (ROOT / file[0]).is_file():
            page = re.sub(r"\.(md|rst)$", "", page_of(file[0]))
            return (page, "") if page in self.env.found_docs else None
        found = NAME.fullmatch(text)
        if not found:
            return None
        name = found[1]
        # A lone lower-case word is more often an argument or a method than a function of ours.
        telling = "." in name or "_" in name or found[2] or not name.islower()
        return known.get(name) if telling else None


def setup(app):
    app.add_post_transform(CodeLinks)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
