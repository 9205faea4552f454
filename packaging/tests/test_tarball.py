"""The tarball: its script installs, refuses damaged files, and removes all that it installed."""

from support import PackageTest, clean_environment, package, project, run


class Tarball(PackageTest):
    def setUp(self):
        super().setUp()
        for triple in (project.GLIBC, project.MUSL):
            archive = package(f"penstock-{project.VERSION}-{triple}.tar.gz")
            run("tar", "-xf", archive, "-C", self.folder)
        self.source = self.folder / f"penstock-{project.VERSION}-{project.GLIBC}"

    def install(self, *arguments, code=0, source=None):
        script = (source or self.source) / "install.sh"
        return run("sh", script, *arguments, code=code, env=clean_environment())

    def test_it_serves_and_leaves_nothing_behind(self):
        for triple in (project.GLIBC, project.MUSL):
            with self.subTest(triple):
                prefix = self.folder / f"prefix-{triple}"
                prefix.mkdir()
                source = self.folder / f"penstock-{project.VERSION}-{triple}"
                self.write("site/index.html", "hello from a prefix")
                text = self.install("--prefix", prefix, source=source)
                self.assertIn(f"{prefix}/bin is not on the PATH", text)
                self.assertTrue((prefix / "share/man/man1/penstock.1").is_file())
                for page in ("isolation", "migrate/nginx"):
                    document = prefix / f"share/doc/penstock/docs/{page}.md"
                    self.assertTrue(document.is_file(), document)
                server = self.serve(
                    prefix / "bin/penstock", "serve", "--files", self.folder / "site",
                    "--listen", "127.0.0.1:0", "--admin", "off", env=clean_environment(),
                )  # fmt: skip
                self.assert_serves(server, "hello from a prefix", "/index.html")
                self.install("--uninstall", "--prefix", prefix, source=source)
                self.assertEqual(list(prefix.iterdir()) if prefix.exists() else [], [])

    def test_uninstall_leaves_files_of_others(self):
        prefix = self.folder / "prefix"
        self.write("prefix/bin/other", "a program")
        self.install("--prefix", prefix)
        self.install("--uninstall", "--prefix", prefix)
        self.assertEqual([path.name for path in (prefix / "bin").iterdir()], ["other"])
        self.assertFalse((prefix / "share").exists())
        self.assertIn(
            "nothing is installed", self.install("--uninstall", "--prefix", prefix, code=1)
        )

    def test_a_damaged_file_is_refused_before_anything_is_installed(self):
        binary = self.source / "bin/penstock"
        content = bytearray(binary.read_bytes())
        content[len(content) // 2] ^= 1
        binary.write_bytes(content)
        prefix = self.folder / "prefix"
        text = self.install("--prefix", prefix, code=1)
        self.assertIn("bin/penstock: FAILED", text)
        self.assertIn("download the archive again", text)
        self.assertFalse(prefix.exists())

    def test_an_unknown_argument_and_a_relative_prefix_are_refused(self):
        self.assertIn("usage", self.install("--nope", code=1))
        self.assertIn("not absolute", self.install("--prefix", "here", code=1))
