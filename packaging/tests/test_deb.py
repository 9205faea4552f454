"""The Debian package: looked at by lintian, installed in a bare Debian, served from, purged."""

import os
import re

from support import (
    WSGI,
    PackageTest,
    clean_environment,
    debian_copy,
    needs_root,
    package,
    project,
    run,
)

ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND": "noninteractive"}
# What dpkg and the tools for users keep about themselves.
OWN_STATE = re.compile(r"^(var/lib/dpkg|var/log|var/cache/(debconf|ldconfig)|etc/\w+-$|run|tmp)")


def listing(root):
    """Every path below a root, but those of dpkg itself."""
    found = set()
    for folder, folders, files in os.walk(root):
        relative = os.path.relpath(folder, root)
        if relative in ("proc", "dev"):
            folders.clear()
            continue
        for name in folders + files:
            path = os.path.normpath(os.path.join(relative, name))
            if not OWN_STATE.match(path):
                found.add(path)
    return found


class Deb(PackageTest):
    def setUp(self):
        super().setUp()
        self.deb = package(f"penstock_{project.VERSION}_amd64.deb")

    def extract(self):
        root = self.folder / "extracted"
        run("dpkg-deb", "--extract", self.deb, root)
        return root

    def test_lintian_finds_nothing(self):
        text = run("lintian", "--allow-root", "--fail-on", "error,warning", self.deb)
        self.assertEqual(text, "")

    def test_the_unit_is_hardened(self):
        unit = self.extract() / "usr/lib/systemd/system/penstock.service"
        text = run("systemd-analyze", "security", "--offline=true", "--threshold=30", unit)
        found = re.search(r"Overall exposure level for penstock.service: ([0-9.]+)", text)
        self.assertLessEqual(float(found[1]), 3.0)
        self.assertIn("User=penstock\n", unit.read_text())

    def test_systemd_and_logrotate_accept_their_files(self):
        root = self.extract()
        # The program of the unit is where a build has put it.
        unit = root / "usr/lib/systemd/system/penstock.service"
        text = unit.read_text().replace("/usr/bin/penstock", f"{root}/usr/bin/penstock")
        unit.write_text(text)
        output = run("systemd-analyze", "verify", "--man=no", unit, env=clean_environment())
        self.assertNotIn("penstock.service:", output)
        # It has to belong to root and to be closed to others, as a package installs it.
        rotate = root / "etc/logrotate.d/penstock"
        state = self.folder / "state"
        output = run("logrotate", "--debug", "--state", state, rotate)
        self.assertNotIn("error", output)

    @needs_root
    def test_it_installs_serves_and_leaves_nothing_after_a_purge(self):
        with debian_copy(self.folder) as root:
            before = listing(root)
            users = (root / "etc/passwd").read_text()
            (root / "tmp/penstock.deb").write_bytes(self.deb.read_bytes())
            self.chroot(root, "dpkg", "--install", "/tmp/penstock.deb")
            self.assertIn("\npenstock:x:", (root / "etc/passwd").read_text())
            check = self.chroot(root, "penstock", "check", "-c", "/etc/penstock/penstock.toml")
            self.assertIn("good", check)
            self.assertIn("serve", self.chroot(root, "penstock", "--help"))
            self.serve_as_the_unit_does(root)
            self.serve_an_application(root)
            self.upgrade_keeps_the_configuration(root)
            self.chroot(root, "dpkg", "--purge", "penstock")
            self.assertEqual(sorted(listing(root) - before), [])
            self.assertEqual((root / "etc/passwd").read_text(), users)

    def chroot(self, root, *command):
        return run("chroot", root, *command, env=ENVIRONMENT)

    def user(self, root, *command):
        """A command of the user of the service, with the folders that the unit makes."""
        for name in ("run/penstock", "var/cache/penstock", "var/log/penstock", "var/lib/penstock"):
            self.chroot(root, "install", "-d", "-o", "penstock", "-g", "penstock", f"/{name}")
        setpriv = ["setpriv", "--reuid=penstock", "--regid=penstock", "--clear-groups"]
        environment = ENVIRONMENT | {"RUNTIME_DIRECTORY": "/run/penstock"}
        return self.serve("chroot", root, *setpriv, *command, env=environment)

    def serve_as_the_unit_does(self, root):
        # Another program may have the port of the default file.
        configuration = root / "etc/penstock/penstock.toml"
        text = configuration.read_text()
        self.assertIn('"127.0.0.1:8080"', text)
        other = root / "etc/penstock/test.toml"
        other.write_text(text.replace('"127.0.0.1:8080"', '"127.0.0.1:0"') + "\n")
        server = self.user(
            root, "penstock", "serve", "-c", "/etc/penstock/test.toml", "--admin", "off"
        )
        self.assert_serves(server, "Penstock runs", "/")
        self.assertIn("GET / ", (root / "var/log/penstock/access.log").read_text())
        other.unlink()

    def serve_an_application(self, root):
        folder = root / "srv/shop"
        folder.mkdir()
        (folder / "app.py").write_text(WSGI)
        server = self.user(
            root, "penstock", "serve", "/srv/shop", "--listen", "127.0.0.1:0", "--admin", "off"
        )
        self.assert_serves(server, "hello /some/path")
        (folder / "app.py").unlink()
        for cache in folder.glob("__pycache__/*"):
            cache.unlink()
        for empty in (folder / "__pycache__", folder):
            if empty.exists():
                empty.rmdir()

    def upgrade_keeps_the_configuration(self, root):
        configuration = root / "etc/penstock/penstock.toml"
        configuration.write_text(configuration.read_text() + "# changed\n")
        self.chroot(root, "dpkg", "--install", "/tmp/penstock.deb")
        self.assertIn("# changed\n", configuration.read_text())
