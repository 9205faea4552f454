"""PHP sites by the recipes of docs/php.md: their pages, with every asset, and nothing that is not to be had."""

import html
import os
import re
import unittest
from urllib.parse import urljoin, urlsplit

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


def recipe(name):
    """The configuration that stands below the heading."""
    text = (ROOT / "docs" / "php.md").read_text()
    section = text.split(f"\n## {name}\n")[1].split("\n## ")[0]
    lines = re.findall(
        r"^(?:    .*)?$", section[section.index("    [upstreams.php]") :], re.MULTILINE
    )
    return "\n".join(line[4:] for line in lines) + "\n"


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
    """What all recipes owe."""

    name = ""
    package = ""
    script = ""
    #: A page, and a text on it.
    page = ("/", "")
    withheld = ()

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        need(cls.package, cls.script)
        folder = cls.folder()
        backend = cls.enterClassContext(PhpFpm(folder))
        text = recipe(cls.name).replace("unix:/run/php/php-fpm.sock", backend.servers[0])
        config = folder / "penstock.toml"
        config.write_text(text)
        cls.server = cls.enterClassContext(Server("-c", config, app=False))

    def follow(self, target):
        """The answer behind redirects, and where it was found."""
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
        tags = re.findall(r"<(?:script|link|img)\b[^>]*?\b(?:src|href)=[\"']([^\"']+)", answer.text)
        assets = {urljoin(self.server.url + found, html.unescape(tag)) for tag in tags}
        ours = [urlsplit(url) for url in assets if url.startswith(self.server.url)]
        self.assertGreater(len(ours), 4)
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

    def test_what_is_not_to_be_had_is_not(self):
        for target in self.withheld:
            with self.subTest(target):
                self.assertEqual(self.server.get(target).status, 404)


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
