"""The documents: each page is in the navigation of the site, and each link leads somewhere."""

import re
import subprocess
import tomllib
import unittest

from harness import BIN, ROOT

DOCS = ROOT / "docs"
SITE = DOCS / "site"
NAVIGATION = SITE / "zensical.toml"
# Pages in the root of the project; scripts/site copies them.
OTHERS = ("README.md", "SECURITY.md", "CHANGELOG.md", "ARCHITECTURE.md", "CONTRIBUTING.md")


def prose(path):
    """Returns a page without its code: links in that are text."""
    text = re.sub(r"^```.*?^```", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    lines = ["" if line.startswith("    ") else line for line in text.splitlines()]
    return re.sub(r"`[^`\n]*`", lambda code: re.sub(r"[()]", "-", code[0]), "\n".join(lines))


def anchors(path):
    """Returns the anchors of a page's headings, as both renderers make them."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", prose(path), re.MULTILINE):
        text = re.sub(r"[`*]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading))
        anchor = re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")
        found |= {anchor, re.sub(r"-+", "-", anchor).strip("-")}
    return found


def entries(navigation):
    """Returns the pages that a navigation names, in order."""
    for entry in navigation:
        for value in entry.values():
            if isinstance(value, str):
                yield value
            else:
                yield from entries(value)


class Documents(unittest.TestCase):
    def pages(self):
        found = [path for path in sorted(DOCS.rglob("*.md")) if SITE not in path.parents]
        self.assertGreater(len(found), 50)
        return found

    def test_each_page_is_in_the_navigation_once(self):
        navigation = tomllib.loads(NAVIGATION.read_text())["project"]["nav"]
        named = list(entries(navigation))
        self.assertEqual(len(named), len(set(named)), "named twice")
        pages = {str(path.relative_to(DOCS)) for path in self.pages()}
        project = {name for name in named if name.startswith("project/")}
        self.assertLessEqual(project, {f"project/{name}" for name in OTHERS})
        self.assertEqual(set(named) - project, pages, "add new pages to docs/site/zensical.toml")

    def test_each_link_leads_somewhere(self):
        broken, count = [], 0
        for page in [*self.pages(), *(ROOT / name for name in OTHERS)]:
            for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
                if re.match(r"https?:|mailto:", link):
                    continue
                count += 1
                target, _, anchor = link.partition("#")
                path = (page.parent / target).resolve() if target else page
                is_there = path.exists() and (ROOT == path or ROOT in path.parents)
                if not is_there or (anchor and anchor not in anchors(path)):
                    broken.append(f"{page.relative_to(ROOT)}: {link}")
        self.assertGreater(count, 400)
        self.assertEqual(broken, [])

    def test_the_index_has_every_verb(self):
        done = subprocess.run([BIN, "--help"], capture_output=True, text=True, timeout=60)
        commands = done.stdout.split("Commands:\n")[1].split("\n\n")[0]
        verbs = set(re.findall(r"^  (\w+)", commands, re.MULTILINE)) - {"help"}
        self.assertGreater(len(verbs), 20)
        section = (DOCS / "README.md").read_text().split("## Commands")[1].split("\n## ")[0]
        missing = [verb for verb in sorted(verbs) if not re.search(rf"\b{verb}\b", section)]
        self.assertEqual(missing, [])

    def test_the_readme_is_one_screen(self):
        self.assertLessEqual(len((ROOT / "README.md").read_text().splitlines()), 60)


if __name__ == "__main__":
    unittest.main()
