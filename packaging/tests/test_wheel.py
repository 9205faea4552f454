"""The wheels: installed into a fresh virtual environment, without a registry, and served from."""

import json

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
        folder = self.virtualenv(package(f"penstock-{project.VERSION}-*manylinux2014_x86_64.whl"))
        self.serve_module(folder / "bin/python", self.clean())

    def test_pip_for_musl_takes_its_wheel_and_no_other(self):
        """As on Alpine: pip chooses among all wheels by the tags of that system."""
        target = self.folder / "target"
        folder = self.virtualenv(package(f"penstock-{project.VERSION}-*manylinux2014_x86_64.whl"))
        words = [folder / "bin/pip", "install", "--no-index", "--find-links", project.PACKAGES]
        words += ["--only-binary", ":all:", "--platform", "musllinux_1_2_x86_64", "--report"]
        report = self.folder / "report.json"
        run(*words, report, "--target", target, "penstock", env=self.clean())
        [installed] = json.loads(report.read_text())["install"]
        self.assertIn("musllinux_1_2_x86_64.whl", installed["download_info"]["url"])
        self.assertEqual(
            (target / "bin/penstock").read_bytes(), project.binary(project.MUSL).read_bytes()
        )
        self.serve_module(PYTHON, self.clean() | {"PYTHONPATH": str(target)})

    def serve_module(self, python, environment):
        server = self.serve(
            python, "-m", "penstock", "serve", "hello:application",
            "--listen", "127.0.0.1:0", "--admin", "off", cwd=self.folder / "app", env=environment,
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
        """auditwheel reads the binary's symbols, check-wheel-contents the archive, twine the page."""
        glibc = package(f"penstock-{project.VERSION}-*manylinux2014_x86_64.whl")
        text = " ".join(run(TOOLS / "auditwheel", "show", glibc).split())
        self.assertIn('constrains the platform tag to "manylinux_2_17_x86_64"', text)
        musl = package(f"penstock-{project.VERSION}-*musllinux_1_2_x86_64.whl")
        for wheel in (glibc, musl):
            self.assertIn("OK", run(TOOLS / "check-wheel-contents", wheel))
            self.assertIn("PASSED", run(TOOLS / "twine", "check", "--strict", wheel))

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
