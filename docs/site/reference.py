"""The pages of the reference: one for each public header, made of what Doxygen has read in it.

A name is public if it is in a header outside of detail/, in no namespace detail, and not private or protected. Public
names that programs cannot use are left out: what is deleted, what takes or returns an object of detail, and friends
that are classes. What a class inherits from a class of detail is shown as its own, also constructors.

Each public name has a comment. One comment is enough for overloads, and for neighbours that it names. The comment of
a class, or the opening of its header, may explain data members and enumerators: it then contains their names. No
comment is needed for what the language gives a meaning: begin() and end(), the types of an iterator, comparison, copies
and moves.
"""

import copy
import itertools
import re
import textwrap
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Iterator

RANGE = {"begin", "end", "operator==", "operator=", "operator++"}
ITERATOR = {"value_type", "difference_type", "iterator_concept", "element_type"}
# Objects of the library. Other names of detail in a signature, such as detail::Returned<R>, stand for types of callers.
OWN = re.compile(r"\bdetail::\w*(Core|Loop|Record|CallResult|Buffer|Draft|Gradient)\b")
DIRECTIVES = {
    "define": "c:macro", "enumvalue": "cpp:enumerator", "friend": "cpp:function", "typedef": "cpp:type",
    "variable": "cpp:var",
}  # fmt: skip
GAP = "\1"  # an escaped space of reStructuredText, which is no space to the reader


def text_of(node: ElementTree.Element | None) -> str:
    return " ".join("".join(node.itertext()).split()) if node is not None else ""


def names(comment: str, name: str) -> bool:
    """Whether a comment contains the name, and not only as that of another class's member."""
    return re.search(rf"(?<![\w:]){re.escape(name)}\b", comment) is not None


def escaped(text: str) -> str:
    return re.sub(r"([\\*`|_])", r"\\\1", text)


def readable(header: str) -> str:
    """The same header, with deeper indentation of what is indented after an empty line of a comment: for Doxygen, only
    that is code. Leaves out a specialization of a variable of std, which Doxygen refuses."""
    header = re.sub(r"(?m)^///.*\n^template .*\n^inline constexpr bool std::.*;$", "\n\n", header)
    lines = header.split("\n")
    for number, line in enumerate(lines):
        before = lines[number - 1] if number > 0 else ""
        if re.match(r" *///   ", line) and re.match(r" *///( {7}|$)", before):
            lines[number] = line.replace("///", "///    ", 1)
    return "\n".join(lines)


class Name:
    """A class, a member or a function, and what Doxygen has found out about it."""

    def __init__(self, node: ElementTree.Element, scope: str) -> None:
        self.node, self.scope, self.kind = node, scope, node.get("kind", "enumvalue")
        self.name = node.findtext("name") or ""
        if node.tag == "compounddef":
            full_name = node.findtext("compoundname")
            self.scope, self.name = re.fullmatch(r"(?:(.*?)::)?([^:<]+(?:<.*)?)", full_name).groups("")
        self.full_name = f"{self.scope}::{self.name}".removeprefix("::")
        self.type = text_of(node.find("type"))
        self.access = node.get("prot")
        place = node.find("location")
        self.file = place.get("file") if place is not None else ""
        self.line = int(place.get("line")) if place is not None else 0
        self.last_line = max(self.line, int(place.get("bodyend", "0"))) if place is not None else 0
        self.args = node.findtext("argsstring") or ""
        self.has_comment = bool(self.comment.strip())
        self.members: list[Name] = []
        self.bases = [(base.get("prot"), base.get("refid"), text_of(base)) for base in node.findall("basecompoundref")]
        self.values = [Name(value, self.name) for value in node.findall("enumvalue")]
        for value in self.values:
            value.file, value.line = self.file, self.line

    @property
    def comment(self) -> str:
        return " ".join(text_of(self.node.find(part)) for part in ("briefdescription", "detaileddescription"))

    @property
    def is_type(self) -> bool:
        return self.kind in ("class", "struct", "concept")

    @property
    def is_left_out(self) -> bool:
        if self.access in ("private", "protected") or "detail" in self.scope.split("::"):
            return True
        if self.args.endswith("=delete"):
            return True
        if self.kind == "function" and not self.type:
            # Deduction guides, and constructors that a class inherits, have the names of other classes.
            around = re.sub("<.*", "", self.scope).split("::")[-1]
            if self.name.removeprefix("~") != around and not self.name.startswith("operator"):
                return True
        is_friend_class = self.kind == "friend" and self.type in ("class", "struct")
        # Doxygen lists a specialization of a variable or a class beside it.
        is_specialization = self.kind in ("variable", "class", "struct") and "<" in self.name
        return is_friend_class or is_specialization or OWN.search(f"{self.type} {self.args}") is not None

    def is_explained(self, around: str) -> bool:
        """Whether no comment is needed. `around` is the comment of the class, and the opening of the header."""
        if self.has_comment or self.name.startswith("~") or re.search(r"=\s*default$|\boverride$", self.args):
            return True
        if self.kind in ("variable", "enumvalue", "define"):
            return names(around, self.name)
        is_copy = re.match(rf"\((const )?{re.escape(self.name)} ?&+ ?\w*\)", self.args) is not None
        return is_copy or self.name in (ITERATOR if self.kind == "typedef" else RANGE)

    def template(self) -> str:
        found = self.node.find("templateparamlist")
        if found is None:
            return ""
        parameters = []
        for parameter in found:
            name, default = text_of(parameter.find("declname")), text_of(parameter.find("defval"))
            kind = text_of(parameter.find("type"))
            parameters.append(f"{kind} {name}".strip() + (f" = {default}" if default else ""))
        return f"template<{', '.join(parameters)}> "

    def signature(self) -> str:
        if self.kind in ("class", "struct"):
            bases = ", ".join(base for prot, _, base in self.bases if prot == "public" and "detail::" not in base)
            bases = bases.replace("syncrun::", "")
            return f"{self.template()}{self.name}" + (f" : public {bases}" if bases else "")
        if self.kind == "concept":
            return f"{self.template()}{self.name}"
        if self.kind == "enum":
            return self.name + (f" : {self.type}" if self.type else "")
        if self.kind in ("enumvalue", "define"):
            return self.name
        kind = re.sub(r"\b(SYNCRUN_EXPORT|friend)\b ?", "", self.type)
        if self.kind == "typedef":
            return f"{self.template()}{self.name} = {kind}"
        condition = text_of(self.node.find("requiresclause"))
        condition = f"requires {condition} " if condition and "{" not in condition else ""
        before, after = (condition, "") if self.template() else ("", f" {condition}".rstrip())
        if self.kind == "variable":
            value = text_of(self.node.find("initializer"))
            value = "" if "detail::" in value else f" {value}"
            static = "static " if self.node.get("static") == "yes" else ""
            return f"{self.template()}{static}{kind} {self.name}{value}"
        words = [word for word in ("static", "explicit", "virtual") if self.node.get(word) == "yes"]
        words = [word for word in words if word not in kind.split()]
        before += " ".join(words)
        args = re.sub(r"\btypename detail::Parameter< ?Passed ?>::Passed\b", "Passed", self.args)
        args = re.sub(r"\s*=\s*default$", "", args)
        return " ".join(f"{self.template()}{before} {kind} {self.name}".split()) + args + after


class Reference:
    """What Doxygen has read, and the pages of it."""

    def __init__(self, xml: Path, include: Path) -> None:
        self.include, self.wrong = include, []
        self.types: dict[str, Name] = {}
        self.names: dict[str, str] = {}  # of everything that a comment can refer to, by Doxygen's number
        free = []
        for file in sorted(xml.glob("*.xml")):
            for compound in ElementTree.parse(file).getroot().iter("compounddef"):
                kind = compound.get("kind")
                if kind in ("class", "struct", "concept"):
                    self.types[compound.get("id")] = made = Name(compound, "")
                    made.members = self.members_of(compound, f"{made.scope}::{made.name}")
                elif kind in ("namespace", "file"):
                    scope = compound.findtext("compoundname") if kind == "namespace" else ""
                    members = self.members_of(compound, scope)
                    free += [name for name in members if kind == "namespace" or name.kind == "define"]
        inner = {}
        for kind in self.types.values():
            for node in kind.node.findall("innerclass"):
                inner[node.get("refid")] = kind
        for number, kind in self.types.items():
            if number in inner and kind.node.get("prot") != "private":
                inner[number].members.append(kind)
        self.top = [*free, *(kind for number, kind in self.types.items() if number not in inner)]
        for name in self.shown(self.top):
            self.register(name)

    def members_of(self, compound: ElementTree.Element, scope: str) -> list[Name]:
        return [Name(member, scope) for member in compound.findall("sectiondef/memberdef")]

    def register(self, name: Name) -> None:
        self.names[name.node.get("id")] = re.sub(r"<[^<>]*>", "", name.full_name)
        for member in self.members_shown(name):
            self.register(member)

    def shown(self, names: list[Name]) -> list[Name]:
        return sorted((name for name in names if not name.is_left_out), key=lambda name: (name.file, name.line))

    def members_shown(self, name: Name) -> list[Name]:
        members = self.shown(name.members)
        for _, number, text in name.bases:
            if "detail::" in text and number in self.types:
                for member in self.types[number].members:
                    if member.access == "public" and not member.args.endswith("=default"):
                        inherited = copy.copy(member)
                        if member.name == self.types[number].name:  # a constructor
                            inherited.name = name.name
                        members.append(inherited)
        return members

    def opening(self, header: Path) -> str:
        """The comment at the head of a header."""
        lines = header.read_text(encoding="utf-8").splitlines()
        while lines and not lines[0].startswith("//"):
            lines.pop(0)
        end = next((number for number, line in enumerate(lines) if not line.startswith("//")), len(lines))
        return "\n".join(line[2:].removeprefix(" ") for line in lines[:end])

    def rst(self, node: ElementTree.Element) -> str:
        """What stands in a paragraph, as reStructuredText."""
        text = escaped(node.text or "")
        for child in node:
            inside = " ".join("".join(child.itertext()).split())
            if child.tag == "computeroutput":
                text += f"{GAP}``{inside}``{GAP}"
            elif child.tag == "ref":
                name = self.names.get(child.get("refid"))
                is_there = name is not None and "operator" not in name
                text += f"{GAP}:cpp:any:`{inside} <{name}>`{GAP}" if is_there else escaped(inside)
            elif child.tag in ("ndash", "mdash"):
                text += "-"
            elif child.tag in ("emphasis", "bold", "ulink"):
                text += escaped(inside)
            else:
                raise ValueError(f"a comment with <{child.tag}>, which reference.py cannot show")
            text += escaped(child.tail or "")
        text = re.sub(r"\bdocs/([\w/-]+)\.md\b", rf"{GAP}:doc:`docs/\1.md </docs/\1>`{GAP}", text)
        return " ".join(text.split()).replace(GAP, "\\ ")

    def paragraphs(self, node: ElementTree.Element) -> Iterator[str]:
        for part in ("briefdescription", "detaileddescription"):
            for paragraph in node.findall(f"{part}/para"):
                text = ElementTree.Element("para")
                text.text = paragraph.text
                for child in paragraph:
                    if child.tag not in ("itemizedlist", "verbatim"):
                        text.append(child)
                        continue
                    yield self.rst(text)
                    if child.tag == "verbatim":
                        code = textwrap.dedent(child.text).strip("\n")
                        yield ".. code-block:: cpp\n\n" + textwrap.indent(code, "   ")
                    else:
                        items = (" ".join(self.rst(inside) for inside in item.findall("para")) for item in child)
                        yield "\n".join(f"- {item}" for item in items)
                    text = ElementTree.Element("para")
                    text.text = child.tail
                yield self.rst(text)

    def directive(self, kind: str, signatures: list[str], body: list[str]) -> list[str]:
        head = f".. {kind}:: "
        joined = ("\n" + " " * len(head)).join(signatures)
        inside = [("   " + line).rstrip() for block in body for line in ("\n" + block).split("\n")]
        return [head + joined, *inside, ""]

    def groups(self, all_names: list[Name]) -> Iterator[list[Name]]:
        """Names with those below them that share their comment: overloads, and neighbours that the comment names."""
        group: list[Name] = []
        for name in all_names:
            first = group[0] if group else None
            if first and first.has_comment and not name.has_comment and first.kind == name.kind and not name.is_type:
                is_neighbour = name.line - group[-1].last_line <= 2  # one line may have the template parameters
                if name.name == first.name or (is_neighbour and names(first.comment, name.name)):
                    group.append(name)
                    continue
            if group:
                yield group
            group = [name]
        if group:
            yield group

    def entries(self, all_names: list[Name], around: str) -> list[str]:
        """The directives of these names."""
        lines: list[str] = []
        for group in self.groups(all_names):
            name = group[0]
            if not name.is_explained(around):
                self.wrong.append(f"{name.file}:{name.line}: {name.full_name} has no comment (///)")
            body = list(self.paragraphs(name.node))
            inside = self.entries([*name.values, *self.members_shown(name)], f"{around} {name.comment}")
            if inside:
                body.append("\n".join(inside))
            kind = DIRECTIVES.get(name.kind, f"cpp:{name.kind}")
            if name.kind == "enum" and name.node.get("strong") == "yes":
                kind = "cpp:enum-class"
            lines += self.directive(kind, [each.signature() for each in group], body)
        return lines

    def page(self, header: Path) -> str:
        name = header.relative_to(self.include).as_posix()
        opening = self.opening(header)
        lines = [name, "=" * len(name), ""]
        for block in opening.split("\n\n"):
            # What is indented is code.
            is_code = block.startswith("  ")
            parts = block.split("`")
            parts[::2] = [escaped(part) for part in parts[::2]]
            lines += [".. code-block:: cpp", "", textwrap.indent(textwrap.dedent(block), "   ")] if is_code else ["``".join(parts)]
            lines.append("")
        lines += [".. code-block:: cpp", "", f"   #include <syncrun/{name}>", ""]
        here = [each for each in self.shown(self.top) if each.file == f"include/syncrun/{name}"]
        for scope, run in itertools.groupby(here, lambda each: each.scope):
            lines += [f".. cpp:namespace:: {scope}", ""] if scope else []
            lines += self.entries(list(run), opening)
        return "\n".join(lines)

    def headers(self) -> list[Path]:
        """The public headers: those outside of detail/ that are no interface between the library and its templates."""
        found = sorted(self.include.rglob("*.hpp"))
        return [path for path in found if "detail" not in path.parts and not path.name.endswith("_seam.hpp")]
