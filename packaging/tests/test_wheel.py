"""The wheels: installed into a fresh virtual environment, without a registry, and served from."""

import zipfile

from support import WSGI, PackageTest, clean_environment, package, project, run

PYTHON = "/usr/bin/python3"


TOOLS = project.ROOT / "packaging/tests/.venv/bin"


class Wheel(PackageTest):
    def setUp(self):
        super().setUp()
        self.write("app/hello.py", WSGI)

    def virtualenv(self, wheel):
        folder = self.folder / "venv"
        run(PYTHON, "-m", "venv", "--clear", folder)
        pip = folder / "bin/pip"
        run(pip, "install", "--no-index", "--disable-pip-version-check", wheel, env=self.clean())
        return folder

    def clean(self):
        return clean_environment(PYTHONDONTWRITEBYTECODE="1")

    def test_python_m_penstock_serves_an_application(self):
        for tag in ("manylinux2014_x86_64", "musllinux_1_2_x86_64"):
            with self.subTest(tag):
                wheel = package(f"penstock-{project.VERSION}-py3-none-*{tag}.whl")
                if tag.startswith("musllinux"):
                    # pip takes it only on such a system, so that its files are laid by hand.
                    self.serve_by_hand(wheel)
                    continue
                folder = self.virtualenv(wheel)
                server = self.serve(
                    folder / "bin/python", "-m", "penstock", "serve", "hello:application",
                    "--listen", "127.0.0.1:0", "--admin", "off",
                    cwd=self.folder / "app", env=self.clean(),
                )  # fmt: skip
                self.assert_serves(server, "hello /some/path")

    def serve_by_hand(self, wheel):
        folder = self.folder / "unpacked"
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder)
        binary = folder / f"penstock-{project.VERSION}.data/scripts/penstock"
        binary.chmod(0o755)
        target = self.folder / "target"
        (target / "bin").mkdir(parents=True)
        binary.rename(target / "bin/penstock")
        (folder / "penstock").rename(target / "penstock")
        server = self.serve(
            PYTHON, "-m", "penstock", "serve", "hello:application",
            "--listen", "127.0.0.1:0", "--admin", "off",
            cwd=self.folder / "app", env=self.clean() | {"PYTHONPATH": str(target)},
        )  # fmt: skip
        self.assert_serves(server, "hello /some/path")

    def test_the_command_manual_pages_and_completions_are_installed_and_removed(self):
        folder = self.virtualenv(package(f"penstock-{project.VERSION}-*manylinux2014_x86_64.whl"))
        self.assertIn(project.VERSION, run(folder / "bin/penstock", "-V"))
        for name in ("man/man1/penstock.1", "man/man5/penstock.toml.5"):
            self.assertTrue((folder / "share" / name).is_file(), name)
        # pip itself knows nothing wrong with the metadata and the list of files.
        self.assertIn("No broken requirements", run(folder / "bin/pip", "check"))
        self.assertIn("License: ", run(folder / "bin/pip", "show", "penstock"))
        run(folder / "bin/pip", "uninstall", "--yes", "penstock")
        left = [path for path in folder.rglob("*penstock*") if path.is_file()]
        self.assertEqual(left, [])

    def test_its_tags_and_its_files_are_what_they_should_be(self):
        """auditwheel reads the symbols of the binary, check-wheel-contents the archive."""
        glibc = package(f"penstock-{project.VERSION}-*manylinux2014_x86_64.whl")
        text = " ".join(run(TOOLS / "auditwheel", "show", glibc).split())
        self.assertIn('constrains the platform tag to "manylinux_2_17_x86_64"', text)
        musl = package(f"penstock-{project.VERSION}-*musllinux_1_2_x86_64.whl")
        for wheel in (glibc, musl):
            self.assertIn("OK", run(TOOLS / "check-wheel-contents", wheel))

    def test_without_its_binary_the_module_says_what_to_do(self):
        folder = self.virtualenv(package(f"penstock-{project.VERSION}-*manylinux2014_x86_64.whl"))
        (folder / "bin/penstock").unlink()
        text = run(folder / "bin/python", "-m", "penstock", "-V", code=1, env=self.clean())
        self.assertIn("pip install --force-reinstall penstock", text)

    def test_pip_installs_into_a_target_folder(self):
        wheel = package(f"penstock-{project.VERSION}-*manylinux2014_x86_64.whl")
        target = self.folder / "target"
        run(PYTHON, "-m", "venv", self.folder / "venv")
        pip = self.folder / "venv/bin/pip"
        run(pip, "install", "--no-index", "--target", target, wheel)
        environment = self.clean() | {"PYTHONPATH": str(target)}
        self.assertIn(project.VERSION, run(PYTHON, "-m", "penstock", "-V", env=environment))
