"""The pages of docs/quickstart, each followed word by word in an empty folder.

`Runner` shows that `quickstart` fails where a page is wrong, and `Production` serves by the
configuration files of the index.
"""

import glob
import os
import re
import shutil
import ssl
import subprocess
import unittest
import urllib.request

from harness import BIN, EXAMPLES, ROOT, Child, RealCase
from quickstart import PageError, Reader, free_ports, parse

PAGES = ROOT / "docs" / "quickstart"
MAX_LINES = 60
BASE = ROOT / ".venv"
FASTAPI = EXAMPLES / "fastapi-levels" / ".venv"
TOML = re.compile(r"```toml\n(.*?)```", re.DOTALL)


def has_php():
    """Returns whether one of the programs is there that Penstock starts for PHP."""
    folders = [*os.environ["PATH"].split(":"), "/usr/sbin"]
    programs = [f"{folder}/{name}*" for folder in folders for name in ("php-fpm", "php-cgi")]
    return any(glob.glob(program) for program in programs)


class Quickstarts(RealCase):
    def follow(self, name, **machine):
        Reader(self.folder(), **machine).follow((PAGES / f"{name}.md").read_text())

    def test_django(self):
        self.follow("django", environment=BASE)

    def test_fastapi(self):
        self.follow("fastapi", environment=FASTAPI)

    def test_flask(self):
        self.follow("flask", environment=BASE)

    @unittest.skipUnless(shutil.which("node"), "no node: scripts/setup applications")
    def test_node(self):
        self.follow("node", has_penstock=True)

    @unittest.skipUnless(has_php(), "no php-fpm: scripts/setup applications")
    def test_php(self):
        self.follow("php", has_penstock=True)

    def test_rails(self):
        self.follow("rails")

    def test_sinatra(self):
        self.follow("sinatra")

    def test_static_site(self):
        self.follow("static-site", has_penstock=True)


class Pages(unittest.TestCase):
    def test_every_page_is_followed_short_and_in_the_index(self):
        pages = {path.stem for path in PAGES.glob("*.md")} - {"README"}
        tests = {
            name.removeprefix("test_") for name in dir(Quickstarts) if name.startswith("test_")
        }
        self.assertEqual({page.replace("-", "_") for page in pages}, tests)
        index = (PAGES / "README.md").read_text()
        for page in pages:
            self.assertIn(f"({page}.md)", index)
            lines = (PAGES / f"{page}.md").read_text().splitlines()
            self.assertLessEqual(len(lines), MAX_LINES, page)


class Runner(RealCase):
    """Pages that are wrong, each in one way."""

    def fails(self, page, problem, seconds=60):
        reader = Reader(self.folder(), has_penstock=True, seconds=seconds)
        with self.assertRaisesRegex(PageError, problem):
            reader.follow(page)
        return reader

    def test_a_block_is_a_file_or_a_console(self):
        for page, problem in [
            ("Then:\n```python\nprint(1)\n```\n", "line 2: a block that is neither"),
            ("```\nls\n```\n", "line 1: a block that is neither"),
            ("`a.py`:\n```console\n$ ls\n```\n", "line 2: a block that is neither"),
            ("```console\nlisting\n```\n", "line 2: output before the first command"),
            ("```console\n```\n", "line 1: a block that is empty"),
            ("```console\n$ ls\n", "line 1: the block does not end"),
            ("``` console\n$ ls\n```\n", "line 1: a block that is empty or has an odd fence"),
            ("Then:\n\n    ls\n", "line 3: code that is not between"),
            ("`a.py`:\n\nThe end.\n", "line 1: no block follows"),
            ("`a.py`:\n", "line 1: no block follows"),
            ("`a.py`:\n# More\n", "line 1: no block follows"),
        ]:
            with self.subTest(page), self.assertRaisesRegex(PageError, problem):
                parse(page)

    def test_commands_do_what_the_page_shows(self):
        for page, problem in [
            ("```console\n$ false\n```\n", "line 2: exited with 1"),
            ("```console\n$ echo a\nb\n```\n", "line 2: other output"),
            ("```console\n$ echo a\na\nb\n```\n", "line 2: other output"),
            ("```console\n$ printf 'a\\nb\\n'\na\n```\n", "line 2: other output"),
            ("```console\n$ curl --version\n```\n", "line 2: the page shows nothing"),
            ("```console\n$ penstock serve\n```\n", "line 2: the page shows nothing"),
            ("Add to `a.py`:\n```python\na = 1\n```\n", "line 2: nothing to add to"),
        ]:
            with self.subTest(page):
                self.fails(page, problem)

    def test_output_may_be_abridged_and_a_shell_remembers(self):
        page = (
            "```console\n$ mkdir new && cd new\n$ export NAME=Anna\n```\n`a`:\n```text\none\n```\n"
            "Add to `a`:\n```text\ntwo\nthree\n```\n```console\n"
            "$ cat a \\\n    && echo I am $NAME\n"
            "one\n...\nI am ...\n```\n"
        )
        Reader(self.folder()).follow(page)

    def test_each_wrong_line_of_a_page_is_found(self):
        page = (PAGES / "static-site.md").read_text()
        for right, wrong, problem in [
            (
                "8080/style.css\nbody { color: teal }",
                "8080/style.css\nbody { color: red }",
                "other",
            ),
            ("<h1>Hello</h1>\n```", "<h1>Hullo</h1>\n```", "other output"),
            ("Cache-Control: max-age=3600\n", "Cache-Control: max-age=7200\n", "other output"),
            ("HTTP/1.1 200 OK", "HTTP/1.1 404 Not Found", "other output"),
            ("curl http://127.0.0.1:8080/style.css", "curl http://127.0.0.1:8090/x.css", "other"),
            ("files only: .../hello/public", "files only: .../hello/other", "what the page shows"),
            ('root = "public"', 'root = "publik"', "the server ended"),
            ("$ penstock stop\n```\n`penstock trust`", "```\n`penstock trust`", "its server runs"),
            ("$ penstock stop\n```\nWithout", "```\nWithout", "a server runs already"),
            ("`public/style.css`:", "`public/styles.css`:", "other output"),
            (
                "listening http://127.0.0.1:8080",
                "listening http://127.0.0.1:80",
                "what the page shows",
            ),
        ]:
            with self.subTest(wrong):
                self.assertEqual(page.count(right), 1, right)
                reader = self.fails(page.replace(right, wrong), problem, seconds=5)
                self.assertIsNone(reader.server)


class Production(RealCase):
    """The files of the index, with a local certificate and folders of the test."""

    def test_each_configuration_passes_the_check(self):
        folder = self.application()
        blocks = self.blocks(folder)
        self.assertEqual(len(blocks), 3)
        for block in blocks:
            (folder / "penstock.toml").write_text(block)
            check_file(self, folder / "penstock.toml")

    def test_files_and_the_application_are_served_over_https(self):
        folder = self.application()
        block = self.blocks(folder)[0]
        http, https = free_ports(2)
        for theirs, ours in [
            ('":80"', f'"127.0.0.1:{http}"'),
            ('":443"', f'"127.0.0.1:{https}"'),
            ('"hello.example"', '"localhost"'),
            ('tls = "auto"', 'tls = "local"'),
        ]:
            self.assertEqual(block.count(theirs), 1, theirs)
            block = block.replace(theirs, ours)
        (folder / "penstock.toml").write_text(block)
        state = {"STATE_DIRECTORY": str(folder / "state"), "XDG_DATA_HOME": str(folder)}
        command = [BIN, "serve", "-c", folder / "penstock.toml", "--admin", "127.0.0.1:0"]
        child = Child(command, {**state, "VIRTUAL_ENV": str(BASE)}, folder)
        try:
            child.wait_for(r"^app \S+: .*ready in ", 30)
            root = next(folder.rglob("local-authority/root.pem"))
            trust = ssl.create_default_context(cafile=root)
            for path, text in [("/robots.txt", "User-agent: *\n"), ("/", "Hello\n")]:
                url = f"https://localhost:{https}{path}"
                with urllib.request.urlopen(url, timeout=20, context=trust) as answer:
                    self.assertEqual(answer.read().decode(), text)
            self.assertEqual(child.terminate(20), 0)
        finally:
            child.kill()

    def application(self):
        """Makes the folder that the pages call /srv/hello."""
        folder = self.folder().resolve()
        (folder / "public").mkdir()
        (folder / "public" / "robots.txt").write_text("User-agent: *\n")
        flask = (PAGES / "flask.md").read_text()
        program = re.search(r"`app.py`:\n```python\n(.*?)```", flask, re.DOTALL)[1]
        (folder / "app.py").write_text(program)
        return folder

    def blocks(self, folder):
        index = (PAGES / "README.md").read_text()
        return [block.replace("/srv/hello", str(folder)) for block in TOML.findall(index)]


class Guides(RealCase):
    """docs/sizing.md and docs/upgrade-guide.md: their configurations and what they let you try."""

    def test_each_configuration_passes_the_check(self):
        folder = self.folder()
        (folder / "app.py").write_text("def app(environ, start_response): ...\n")
        for name, count in [("sizing", 5), ("upgrade-guide", 1)]:
            blocks = TOML.findall(guide(name))
            self.assertEqual(len(blocks), count, name)
            for block in blocks:
                served = "" if "[apps.shop]" in block else "[apps.shop]\n"
                (folder / "penstock.toml").write_text(block + served)
                check_file(self, folder / "penstock.toml")

    def test_the_example_of_sizes_is_measured(self):
        start = re.search(r"```console\n.*?```\n", (PAGES / "flask.md").read_text(), re.DOTALL)[0]
        example = guide("sizing").split("## Worked example\n")[1]
        Reader(self.folder(), environment=BASE).follow(start + example)

    def test_an_upgrade_under_load_fails_no_request(self):
        page = guide("upgrade-guide").split("## Try it\n")[1]
        site = "`index.html`:\n```html\n<h1>Hello</h1>\n```\n"
        Reader(self.folder(), has_penstock=True).follow(site + page)


def guide(name):
    return (ROOT / "docs" / f"{name}.md").read_text()


def check_file(case, file):
    command = [BIN, "check", "--config-only", "-c", file]
    done = subprocess.run(command, capture_output=True, text=True)
    case.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
