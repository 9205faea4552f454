"""PHP sites by the recipes of docs/php.md: pages with every asset, no access to private files."""

import concurrent.futures
import html
import itertools
import json
import os
import re
import shutil
import subprocess
import unittest
from pathlib import Path
from urllib.parse import urljoin, urlsplit

import requests

from backends import Backend, need
from harness import ROOT, RealCase, Server

POOL = """\
[global]
error_log = /dev/stderr
daemonize = no
[www]
{user}
listen = {socket}
pm = static
pm.max_children = 4
php_admin_value[session.save_path] = {folder}
"""

CLIENTS = 12
SECONDS = 60


def load_tests(loader, tests, pattern):
    """Loads all tests when the module is named, none in discovery: `make test-backends` names it."""
    return tests if pattern is None else unittest.TestSuite()


def recipe(name):
    """Returns the configuration below the heading."""
    text = (ROOT / "docs" / "php.md").read_text()
    section = text.split(f"\n## {name}\n")[1].split("\n## ")[0]
    lines = section[section.index("    [upstreams.php]") :].splitlines()
    block = itertools.takewhile(lambda line: not line or line.startswith("    "), lines)
    return "\n".join(line[4:] for line in block) + "\n"


class PhpFpm(Backend):
    def start(self):
        binary = need("php-fpm", "/usr/sbin/php-fpm*", "php-fpm")
        user = "user = root" if os.geteuid() == 0 else ""
        as_root = ["--allow-to-run-as-root"] if user else []
        pool = POOL.format(user=user, socket=self.socket("php"), folder=self.folder)
        (self.folder / "fpm.conf").write_text(pool)
        command = (binary, "--nodaemonize", *as_root, "--fpm-config", self.folder / "fpm.conf")
        self.run(*command, ready="ready to handle connections")


class Site:
    """The checks that all recipes must pass."""

    name = ""
    package = ""
    script = ""
    #: The folder that the recipe names, where the test has another one.
    root = None
    #: A page, and a text on it.
    page = ("/", "")
    withheld = ()

    @classmethod
    def make(cls, folder):
        """Installs the site into the directory, unless it is served from Debian's."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        need(cls.package, cls.script)
        folder = cls.folder()
        cls.make(folder)
        backend = cls.enterClassContext(PhpFpm(folder))
        text = recipe(cls.name).replace("unix:/run/php/php-fpm.sock", backend.servers[0])
        if cls.root:
            text = text.replace(f'"{cls.root}"', json.dumps(str(folder / "site")))
        config = folder / "penstock.toml"
        config.write_text(text)
        cls.server = cls.enterClassContext(Server("-c", config, app=False))

    def follow(self, target):
        """Follows redirects; returns the response and its URL."""
        for _ in range(5):
            answer = self.server.get(target)
            if answer.status not in (301, 302, 303, 307, 308):
                return target, answer
            parts = urlsplit(urljoin(self.server.url + target, answer.headers["Location"]))
            target = f"{parts.path}?{parts.query}" if parts.query else parts.path
        raise AssertionError(f"too many redirects: {target}")

    def test_a_page_arrives_with_every_asset(self):
        target, text = self.page
        found, answer = self.follow(target)
        self.assertEqual(answer.status, 200)
        self.assertIn(text, answer.text)
        self.check_assets(found, answer)

    def check_assets(self, found, answer, least=4):
        """Checks that every script, style and image of this page arrives."""
        # Scripts hold templates with incomplete addresses.
        text = re.sub(r"(<script\b[^>]*>).*?</script>", r"\1", answer.text, flags=re.DOTALL)
        tags = re.findall(r"<(?:script|link|img)\b[^>]*?\b(?:src|href)=[\"']([^\"']+)", text)
        assets = {urljoin(self.server.url + found, html.unescape(tag)) for tag in tags}
        ours = [urlsplit(url) for url in assets if url.startswith(self.server.url)]
        self.assertGreaterEqual(len(ours), least)
        for parts in ours:
            asset = f"{parts.path}?{parts.query}" if parts.query else parts.path
            with self.subTest(asset):
                _, answer = self.follow(asset)
                self.assertEqual(answer.status, 200)
                self.assertGreater(len(answer.body), 0)
                self.assertNotIn(b"<?php", answer.body[:1000])
                kind = answer.headers["Content-Type"]
                if parts.path.endswith((".css", ".js", ".png", ".ico", ".svg")):
                    self.assertFalse(kind.startswith("text/html"), kind)

    def test_more_clients_than_children_are_served(self):
        target, text = self.page
        target, _ = self.follow(target)

        def ask(_):
            with requests.Session() as session:
                answers = [session.get(self.server.url + target, timeout=SECONDS) for _ in range(3)]
            return [(answer.status_code, text in answer.text) for answer in answers]

        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            for answers in pool.map(ask, range(CLIENTS)):
                self.assertEqual(answers, [(200, True)] * 3)

    def test_what_is_not_to_be_had_is_not(self):
        for target in self.withheld:
            with self.subTest(target):
                self.assertEqual(self.server.get(target).status, 404)


class MariaDb(Backend):
    """A database server of its own, on a Unix socket without a password."""

    def start(self):
        install = need("mariadb-server", "mariadb-install-db")
        server = need("mariadb-server", "mariadbd", "/usr/sbin/mariadbd")
        data = self.folder / "data"
        user = ["--user=root"] if os.geteuid() == 0 else []
        options = ["--auth-root-authentication-method=normal", "--skip-test-db", *user]
        command = [install, "--no-defaults", f"--datadir={data}", *options]
        subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
        socket = self.socket("mariadb")
        places = [f"--datadir={data}", f"--socket={socket}", f"--pid-file={self.folder}/pid"]
        command = [server, "--no-defaults", *places, "--skip-networking", *user]
        self.run(*command, ready="ready for connections")
        client = need("mariadb-server", "mariadb")
        words = [client, "--no-defaults", f"--socket={socket}", "--user=root", "--execute"]
        subprocess.run([*words, "CREATE DATABASE wordpress"], check=True, timeout=SECONDS)


class TestWordPress(Site, RealCase):
    name = "WordPress"
    package = "wordpress"
    script = "/usr/share/wordpress/wp-login.php"
    root = "/var/www/wordpress"
    page = ("/", "Hello world!")
    withheld = ("/wp-content/uploads/none.jpg", "/.htaccess", "/wp-content/.git/config")

    @classmethod
    def make(cls, folder):
        # Debian's package is spread over directories by links; WordPress itself is one directory.
        site = folder / "site"
        shutil.copytree("/usr/share/wordpress", site)
        database = cls.enterClassContext(MariaDb(folder))
        address = database.servers[0].removeprefix("unix:")
        config = (site / "wp-config-sample.php").read_text()
        words = {
            "database_name_here": "wordpress",
            "username_here": "root",
            "password_here": "",
            "'localhost'": f"'localhost:{address}'",
        }
        for old, new in words.items():
            config = config.replace(old, new)
        (site / "wp-config.php").write_text(config)
        (site / "wp-content" / "uploads").mkdir()
        cls.site = site

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.session = cls.enterClassContext(requests.Session())
        asked = requests.get(f"{cls.server.url}/", allow_redirects=False, timeout=SECONDS)
        assert asked.headers["Location"] == f"{cls.server.url}/wp-admin/install.php", asked.headers
        password = "a long one, 7 words of it"
        cls.send(
            "/wp-admin/install.php?step=2",
            weblog_title="Bridge",
            user_name="keeper",
            admin_password=password,
            admin_password2=password,
            pw_weak="on",
            admin_email="keeper@site.example",
            blog_public="0",
        )
        cls.send("/wp-login.php", log="keeper", pwd=password, **{"wp-submit": "Log In"})
        links = re.findall(r'href="([^"]+/hello-world/)"', cls.look("/").text)
        cls.first_link = urlsplit(links[0]).path
        cls.first_page = cls.look(cls.first_link).text
        # Plain slugs, as nearly every site has them.
        page = cls.look("/wp-admin/options-permalink.php").text
        fields = {
            "_wpnonce": re.search(r'name="_wpnonce" value="(\w+)"', page)[1],
            "_wp_http_referer": "/wp-admin/options-permalink.php",
            "selection": "custom",
            "permalink_structure": "/%postname%/",
            "submit": "Save Changes",
        }
        cls.send("/wp-admin/options-permalink.php", **fields)

    @classmethod
    def look(cls, target):
        answer = cls.session.get(cls.server.url + target, timeout=SECONDS)
        assert answer.status_code == 200, (target, answer.status_code, answer.text[:3000])
        return answer

    @classmethod
    def send(cls, target, **fields):
        answer = cls.session.post(cls.server.url + target, fields, timeout=SECONDS)
        assert answer.status_code == 200, (target, answer.status_code, answer.text[:3000])
        return answer

    def test_pretty_permalinks_and_the_rest_interface(self):
        for target in ("/hello-world/", "/sample-page/", "/hello-world/feed/"):
            with self.subTest(target):
                self.assertEqual(self.server.get(target).status, 200)
        # WordPress checked at its installation whether they work.
        self.assertRegex(self.first_link, r"^/[\d/]+/hello-world/$")
        self.assertIn("Hello world!", self.first_page)
        moved = self.server.get("/hello-world")
        self.assertEqual((moved.status, moved.headers["Location"][-13:]), (301, "/hello-world/"))
        missing = self.server.get("/no-such-page/")
        self.assertEqual(missing.status, 404)
        self.assertIn("Bridge", missing.text)
        posts = self.look("/wp-json/wp/v2/posts?per_page=1").json()
        self.assertEqual(posts[0]["slug"], "hello-world")

    def test_the_admin_pages_arrive_with_every_asset(self):
        moved = self.server.get("/wp-admin")
        self.assertEqual((moved.status, moved.headers["Location"][-10:]), (301, "/wp-admin/"))
        # A visitor without a login is redirected to the form.
        login = self.server.get("/wp-admin/")
        self.assertEqual(login.status, 302)
        self.assertIn("/wp-login.php?redirect_to=", login.headers["Location"])
        for target in ("/wp-admin/", "/wp-admin/post-new.php", "/wp-admin/upload.php"):
            page = self.look(target)
            self.assertIn("keeper", page.text)
            page.body, page.status = page.content, page.status_code
            self.check_assets(target, page)

    def test_an_upload_is_sent_and_never_run(self):
        page = self.look("/wp-admin/media-new.php").text
        fields = {
            "name": "bridge.png",
            "action": "upload-attachment",
            "_wpnonce": re.search(r'"multipart_params":\{[^}]*"_wpnonce":"(\w+)"', page)[1],
        }
        image = (self.site / "wp-admin" / "images" / "wordpress-logo.png").read_bytes()
        files = {"async-upload": ("bridge.png", image, "image/png")}
        address = f"{self.server.url}/wp-admin/async-upload.php"
        answer = self.session.post(address, fields, files=files, timeout=SECONDS)
        told = answer.json()
        self.assertTrue(told["success"], told)
        url = urlsplit(told["data"]["url"])
        self.assertEqual(self.server.get(url.path).body, image)
        # A PHP file that reached the uploads all the same.
        evil = self.site / "wp-content" / "uploads" / "evil.php"
        evil.write_text("<?php echo 6 * 7;")
        for target in ("/wp-content/uploads/evil.php", "/wp-content/uploads/evil.php/x"):
            answer = self.server.get(target)
            self.assertNotIn("42", answer.text)

    def test_xmlrpc_answers(self):
        call = "<methodCall><methodName>demo.sayHello</methodName></methodCall>"
        answer = self.server.request("POST", "/xmlrpc.php", call, {"Content-Type": "text/xml"})
        self.assertEqual(answer.status, 200)
        self.assertIn("Hello!", answer.text)


class TestMediaWiki(Site, RealCase):
    name = "MediaWiki"
    package = "mediawiki"
    script = "/usr/share/mediawiki/index.php"
    root = "/var/www/html"
    page = ("/", "MediaWiki has been installed")
    withheld = (
        "/w/includes/Setup.php",
        "/w/includes/AutoLoader.php",
        "/w/languages/Language.php",
        "/w/maintenance/update.php",
        "/w/vendor/autoload.php",
        "/w/cache/x",
        "/w/images/deleted/x.png",
        "/w/images/none.png",
        "/no-such-page",
        "/robots.txt",
    )

    SETTINGS = """
$wgServer = WebRequest::detectServer();
$wgArticlePath = "/wiki/$1";
$wgUsePathInfo = true;
$wgEnableUploads = true;
"""
    PASSWORD = "a-long-one-of-7-words"

    @classmethod
    def make(cls, folder):
        cls.home = folder / "site" / "w"

        without_settings = shutil.ignore_patterns("LocalSettings.php")

        def place(source, target):
            # Hundreds of megabytes, of which nothing is written to.
            try:
                os.link(source, target)
            except OSError:
                shutil.copy2(source, target)

        shutil.copytree(
            "/usr/share/mediawiki", cls.home, copy_function=place, ignore=without_settings
        )
        (folder / "site" / "favicon.ico").write_bytes(b"an icon")
        for name in ("cache", "images/deleted"):
            (cls.home / name).mkdir(exist_ok=True)
        (cls.home / "cache" / "x").write_text("cached")
        (cls.home / "images" / "deleted" / "x.png").write_text("deleted")
        words = ["--dbtype", "sqlite", "--dbpath", folder / "data", "--dbname", "wiki"]
        words += ["--server", "http://127.0.0.1", "--scriptpath", "/w", "--pass", cls.PASSWORD]
        command = ["php", cls.home / "maintenance" / "install.php", *words, "Bridge", "Keeper"]
        subprocess.run(command, check=True, capture_output=True, timeout=SECONDS)
        with (cls.home / "LocalSettings.php").open("a") as settings:
            settings.write(cls.SETTINGS)

    def call(self, session, **fields):
        """Makes one API call by POST; `file` is sent as a file."""
        files = {"file": fields.pop("file")} if "file" in fields else None
        fields["format"] = "json"
        address = f"{self.server.url}/w/api.php"
        answer = session.post(address, fields, files=files, timeout=SECONDS)
        self.assertEqual(answer.status_code, 200, answer.text[:3000])
        told = answer.json()
        self.assertNotIn("error", told)
        return told

    def log_in(self, session):
        """Returns the token of a session that may edit."""
        asked = self.call(session, action="query", meta="tokens", type="login")
        token = asked["query"]["tokens"]["logintoken"]
        words = {"lgname": "Keeper", "lgpassword": self.PASSWORD, "lgtoken": token}
        told = self.call(session, action="login", **words)
        self.assertEqual(told["login"]["result"], "Success")
        return self.call(session, action="query", meta="tokens")["query"]["tokens"]["csrftoken"]

    def test_pages_of_every_title_are_there(self):
        titles = {
            "Plain": "/wiki/Plain",
            "Two words": "/wiki/Two_words",
            "Café": "/wiki/Caf%C3%A9",
            "C++": "/wiki/C%2B%2B",
            "AC/DC": "/wiki/AC/DC",
            "Why?": "/wiki/Why%3F",
            "100%": "/wiki/100%25",
            "Index.php": "/wiki/Index.php",
            "Index.php/part": "/wiki/Index.php/part",
        }
        with requests.Session() as session:
            token = self.log_in(session)
            for title in titles:
                text = f"The text of ''{title}''."
                told = self.call(session, action="edit", title=title, text=text, token=token)
                self.assertEqual(told["edit"]["result"], "Success", told)
        for title, path in titles.items():
            for target in (path, f"/w/index.php?title={path.removeprefix('/wiki/')}"):
                with self.subTest(target):
                    answer = self.server.get(target)
                    self.assertEqual(answer.status, 200)
                    self.assertIn(f"The text of <i>{title}</i>.", answer.text)
        self.assertEqual(self.server.get("/wiki/No_such_page").status, 404)
        # The short address is the public one.
        moved = self.server.get("/")
        self.assertEqual(moved.status, 301)
        self.assertEqual(moved.headers["Location"], f"{self.server.url}/wiki/Main_Page")

    def test_loader_and_rest_interface_answer(self):
        for query in ("modules=startup&only=scripts&raw=1", "modules=site.styles&only=styles"):
            answer = self.server.get(f"/w/load.php?lang=en&skin=vector&{query}")
            self.assertEqual(answer.status, 200)
            self.assertIn(
                answer.headers["Content-Type"].split(";")[0], ("text/javascript", "text/css")
            )
        page = json.loads(self.server.get("/w/rest.php/v1/page/Main_Page").body)
        self.assertEqual(page["title"], "Main Page")

    def test_an_upload_is_sent_and_never_run(self):
        image = Path("/usr/share/mediawiki/resources/assets/wiki.png")
        image = image if image.exists() else next(self.home.rglob("*.png"))
        with requests.Session() as session:
            token = self.log_in(session)
            file = ("bridge.png", image.read_bytes(), "image/png")
            words = {"action": "upload", "filename": "Bridge.png", "ignorewarnings": "1"}
            told = self.call(session, **words, token=token, file=file)
        self.assertEqual(told["upload"]["result"], "Success", told)
        url = urlsplit(told["upload"]["imageinfo"]["url"])
        self.assertEqual(self.server.get(url.path).body, image.read_bytes())
        (self.home / "images" / "evil.php").write_text("<?php echo 6 * 7;")
        self.assertNotIn("42", self.server.get("/w/images/evil.php").text)


class TestDokuWiki(Site, RealCase):
    name = "DokuWiki"
    package = "dokuwiki"
    script = "/usr/share/dokuwiki/doku.php"
    page = ("/", "dokuwiki__header")
    withheld = (
        "/data/pages/start.txt",
        "/conf/local.php",
        "/inc/init.php",
        "/inc/lang/en/lang.php",
        "/bin/dwpage.php",
        "/vendor/autoload.php",
    )

    def test_hidden_files_are_the_front_controllers(self):
        self.assertEqual(self.server.get("/.htaccess").status, 302)


class TestPhpMyAdmin(Site, RealCase):
    name = "phpMyAdmin"
    package = "phpmyadmin"
    script = "/usr/share/phpmyadmin/index.php"
    page = ("/index.php", "pma_username")
    withheld = (
        "/libraries/config.default.php",
        "/templates/login/form.twig",
        "/sql/create_tables.sql",
    )


if __name__ == "__main__":
    unittest.main()
