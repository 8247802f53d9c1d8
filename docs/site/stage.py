#!/usr/bin/env python3
"""Writes the sources of the reference site, for Sphinx: the pages, the reference, and the files to which pages link.

usage: stage.py ROOT FOLDER
Prints each broken link, and each public name without a comment, as FILE:LINE: what is wrong. Exit code 1 if there is
one.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

sys.dont_write_bytecode = True
from reference import Reference, readable  # noqa: E402

HERE = Path(__file__).resolve().parent
CODE = re.compile(r"^( *)```.*?^\1```$|`[^`\n]+`", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"(?<=\]\()(?P<target>[^)#\s]*)(?:#(?P<anchor>[^)\s]*))?(?=\))")
SHOWN = re.compile(r"^<!-- (?P<kind>sample|run|diff): (?P<what>[^\n]*?) -->\n```(?P<language>\w+)$", re.MULTILINE)
LANGUAGES = {".cpp": "cpp", ".hpp": "cpp", ".cu": "cpp", ".py": "python", ".txt": "cmake", ".json": "json"}
SAMPLES = "docs/samples"


def without_code(text: str) -> str:
    """The same text with spaces in place of code, so that every position stays."""
    return CODE.sub(lambda code: re.sub(r"[^\n]", " ", code[0]), text)


def anchors_of(text: str) -> set[str]:
    """The anchors of the headings, as GitHub and MyST make them."""
    prose = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ +(.*?)$", prose, re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in plain}


class Stage:
    def __init__(self, root: Path, folder: Path) -> None:
        self.root, self.folder, self.wrong = root, folder, []
        pages = [root / "README.md", root / "CHANGELOG.md", *sorted((root / "docs").rglob("*.md"))]
        # A README of a folder says what belongs there. It is on the site if a page links to it.
        self.pages = [page for page in pages if page.is_file() and (page.name != "README.md" or page.parent == root)]
        self.others: list[Path] = []  # the files to which pages link

    def place(self, file: Path) -> Path:
        """Where a page or another file of the repository is in FOLDER."""
        name = file.relative_to(self.root)
        if file == self.root / "README.md":
            return self.folder / "index.md"
        if file in self.pages or file.suffix in (".svg", ".png"):
            return self.folder / name
        return self.folder / "source" / (f"{name}.md" if file.suffix != ".md" else name)

    def link(self, page: Path, target: str, anchor: str | None) -> str:
        file = (page.parent / target).resolve() if target else page
        if not file.exists() or not file.is_relative_to(self.root):
            raise ValueError(f"a link that leads nowhere: {target}")
        if anchor and file.suffix == ".md" and anchor not in anchors_of(file.read_text(encoding="utf-8")):
            raise ValueError(f"a link to a heading that is not there: {target}#{anchor}")
        return (self.path(page, file) if target else "") + (f"#{anchor}" if anchor else "")

    def path(self, page: Path, file: Path) -> str:
        """From a page to another file, which the site then has."""
        if file not in self.pages and file not in self.others:
            self.others.append(file)
        return os.path.relpath(self.place(file), self.place(page).parent)

    def caption(self, page: Path, shown: re.Match) -> str:
        what = shown["what"]
        if shown["kind"] == "run":
            caption = f"Output of `{what}`"
        else:
            name = what.split()[0]
            file = self.root / SAMPLES / name
            caption = f"[{Path(name).name}]({self.path(page, file if file.is_file() else self.root / name)})"
            caption += " compared with the next program" if shown["kind"] == "diff" else ""
        return f"```{{code-block}} {shown['language']}\n:caption: \"{caption}\"\n"

    def mended(self, page: Path, text: str) -> str:
        """A page whose links lead to the places of the files on the site."""
        links, at = [], 0
        for found in LINK.finditer(without_code(text)):
            if "://" in found["target"] or not (found["target"] or found["anchor"]):
                continue
            try:
                path = self.link(page, found["target"], found["anchor"])
            except ValueError as error:
                line = text.count("\n", 0, found.start()) + 1
                self.wrong.append(f"{page.relative_to(self.root)}:{line}: {error}")
                continue
            links += [text[at : found.start()], path]
            at = found.end()
        return SHOWN.sub(lambda shown: self.caption(page, shown), "".join(links) + text[at:])

    def source(self, file: Path) -> str:
        """A page that shows a file, or that lists the files of a folder."""
        name = file.relative_to(self.root).as_posix()
        if file.is_dir():
            files = [path for path in sorted(file.iterdir()) if path.is_file() and path.suffix in LANGUAGES]
            return f"# {name}\n\n" + "".join(f"- [{path.name}]({self.path(file, path)})\n" for path in files)
        language = LANGUAGES.get(file.suffix, "text")
        return f"# {name}\n\n`````{language}\n{file.read_text(encoding='utf-8').strip()}\n`````\n"

    def write(self, place: Path, text: str) -> None:
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")

    def reference(self) -> None:
        include = self.root / "include/syncrun"
        work = self.folder / "doxygen"
        for header in include.rglob("*.hpp"):
            self.write(work / header.relative_to(self.root), readable(header.read_text(encoding="utf-8")))
        settings = (HERE / "Doxyfile").read_text(encoding="utf-8")
        settings += "".join(f'{name} = "{work}"\n' for name in ("INPUT", "OUTPUT_DIRECTORY", "STRIP_FROM_PATH"))
        done = subprocess.run(["doxygen", "-"], input=settings, capture_output=True, text=True, check=False)
        findings = dict.fromkeys(line.replace(f"{work}/", "") for line in done.stderr.splitlines())
        self.wrong += [line for line in findings if "warning: " in line or "error: " in line]
        reference = Reference(work / "xml", include)
        pages = {header: reference.page(header) for header in reference.headers()}
        self.wrong += sorted(set(reference.wrong))
        rows = ""
        names = []
        for header, text in pages.items():
            name = header.relative_to(include).as_posix()
            place = name.removesuffix(".hpp")
            self.write(self.folder / f"reference/{place}.rst", text)
            names.append(place)
            rows += f"- [{name}]({place}.rst): {first_sentence(reference.opening(header))}\n"
        contents = "\n".join(["```{toctree}", ":hidden:", "", *names, "```"])
        self.write(self.folder / "reference/index.md", f"# All headers\n\n{rows}\n{contents}\n")
        shutil.rmtree(work)

    def run(self) -> None:
        for page in self.pages:
            text = self.mended(page, page.read_text(encoding="utf-8"))
            if page == self.root / "README.md":
                text += "\n" + (HERE / "contents.txt").read_text(encoding="utf-8")
            self.write(self.place(page), text)
        for file in self.others:  # grows while it is read
            if file.suffix == ".md":
                text = self.mended(file, file.read_text(encoding="utf-8"))
            elif file.suffix in (".svg", ".png"):
                self.place(file).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, self.place(file))
                continue
            else:
                text = self.source(file)
            self.write(self.place(file), f"---\norphan: true\n---\n{text}")
        self.reference()


def first_sentence(text: str) -> str:
    return re.split(r"(?<=\.)\s", " ".join(text.split()))[0]


def main(arguments: list[str]) -> int:
    if len(arguments) != 2:
        print(__doc__, file=sys.stderr)
        return 2
    root, folder = (Path(argument).resolve() for argument in arguments)
    stage = Stage(root, folder)
    stage.run()
    print("\n".join(stage.wrong), end="\n" if stage.wrong else "")
    return 1 if stage.wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
