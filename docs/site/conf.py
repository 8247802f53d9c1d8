"""How Sphinx makes the reference site of what stage.py has written (scripts/site.sh)."""

import re
from pathlib import Path

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.domains.cpp import CPPDomain
from sphinx.transforms.post_transforms import SphinxPostTransform
from sphinx.util.nodes import make_refnode

HERE = Path(__file__).resolve().parent
VERSION = (HERE.parents[1] / "include/syncrun/version.hpp").read_text(encoding="utf-8")
project = "Syncrun"
version = release = ".".join(re.findall(r"VERSION_\w+ (\d+)", VERSION))
copyright = "the authors of Syncrun"  # noqa: A001
extensions = ["myst_parser"]
root_doc = "index"
primary_domain = "cpp"
highlight_language = "cpp"
myst_heading_anchors = 6
cpp_maximum_signature_line_length = 130
smartquotes = False
toc_object_entries_show_parents = "hide"

pygments_dark_style = "github-dark"
html_theme = "furo"
html_title = f"Syncrun {release}"
html_static_path = [str(HERE / "style.css")]
html_css_files = ["style.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
# A browser does not let a page read other files of the disk, which it would do for these.
html_show_search_summary = False


class Names(CPPDomain):
    """C++ without the names of parameters, which would hide the names of functions in the results of a search."""

    def get_objects(self):
        return (found for found in super().get_objects() if found[2] not in ("functionParam", "templateParam"))


class NamesInText(SphinxPostTransform):
    """On each page, the first `Name` in code that the reference has becomes a link to it."""

    default_priority = 500
    pattern = re.compile(r"(?:sr::|syncrun::)?([A-Z]\w*(?:::\w+)?)(?:\(\))?")

    def run(self, **kwargs) -> None:
        if self.env.docname.startswith("reference/"):
            return
        targets = self.env.names_of_reference
        seen = set()
        for node in list(self.document.findall(nodes.literal)):
            name = self.pattern.fullmatch(node.astext())
            if name is None or name[1] in seen or name[1] not in targets:
                continue
            if any(isinstance(parent, (nodes.reference, nodes.title, nodes.caption)) for parent in ancestors(node)):
                continue
            seen.add(name[1])
            page, anchor = targets[name[1]]
            node.replace_self(make_refnode(self.app.builder, self.env.docname, page, anchor, node.deepcopy()))


def ancestors(node: nodes.Node):
    while node.parent is not None:
        node = node.parent
        yield node


def read(app: Sphinx, env) -> None:
    """After all pages are read: finds the names of the reference, and shortens what Sphinx copies for each page."""
    env.names_of_reference = {
        name.removeprefix("syncrun::"): (page, anchor)
        for name, _, _, page, anchor, _ in env.get_domain("cpp").get_objects()
    }
    # The list of all pages, which each page has, shows titles only. Leaving out the rest saves half of the time.
    env.contents = {page: contents.deepcopy() for page, contents in env.tocs.items()}
    for contents in env.tocs.values():
        if next(contents.findall(addnodes.toctree), None) is None:
            for item in contents.children:
                item[:] = [child for child in item if not isinstance(child, nodes.bullet_list)]


def show_contents(app: Sphinx, page: str, template: str, context: dict, doctree: nodes.document | None) -> None:
    """The contents of a page. Overloads are one entry."""
    if page not in app.env.contents:
        return
    contents = app.env.contents[page].deepcopy()
    for toctree in list(contents.findall(addnodes.toctree)):
        toctree.parent.remove(toctree)
    before = None
    for item in list(contents.findall(nodes.list_item)):
        entry = item.next_node(nodes.reference)
        if before == entry.astext() and len(item) == 1:
            item.parent.remove(item)
        before = entry.astext()
        entry["refuri"] = entry["anchorname"] or "#"
    context["toc"] = app.builder.render_partial(contents)["fragment"]
    context["furo_hide_toc"] = len(list(contents.findall(nodes.list_item))) < 2


def setup(app: Sphinx) -> dict:
    app.add_domain(Names, override=True)
    app.add_post_transform(NamesInText)
    app.connect("env-updated", read)
    app.connect("html-page-context", show_contents, priority=900)  # after furo
    return {"parallel_read_safe": True, "parallel_write_safe": True}
