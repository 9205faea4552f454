"""The images: process 1 in namespaces of its own, with a read-only root and without root's rights.

No container runtime takes part: tests/contain.py does what one does. Images by COPY --from start from
a bare Debian with Python or Ruby in place of the one from a registry.
"""

import concurrent.futures
import contextlib
import json
import os
import pathlib
import shutil
import signal
import tarfile
import time
import unittest

from support import (
    RACK,
    STOP_DEADLINE,
    PackageTest,
    debian_root,
    image,
    needs_root,
    package,
    project,
    run,
)

CONTAIN = pathlib.Path(__file__).with_name("contain.py")
COMPOSE = project.ROOT / "packaging/bin/cmd"
SOURCE = project.ROOT / "packaging/image/compose.yaml"
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "HOME": "/"}
USER = 65532
# An application that leaves processes behind, which process 1 has to reap, and answers slowly.
APPLICATION = """\
import os
import time

def leave_orphan():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execv("/bin/sh", ["sh", "-c", "sleep 0.2; : >/tmp/orphan"])
        os._exit(0)
    os.wait()

def application(environ, start_response):
    if environ["PATH_INFO"] == "/orphan":
        leave_orphan()
    if environ["PATH_INFO"] == "/slow":
        open("/tmp/slow", "w").close()
        time.sleep(2)
    start_response("200 OK", [])
    return [b"hello from user %d" % os.getuid()]
"""


def unpack(archive, folder):
    """Unpacks the layers of an OCI archive into a folder; returns the image's configuration."""
    with tarfile.open(archive) as image:

        def blob(digest):
            return image.extractfile(f"blobs/{digest.replace(':', '/')}")

        index = json.load(image.extractfile("index.json"))
        manifest = json.load(blob(index["manifests"][0]["digest"]))
        for layer in manifest["layers"]:
            with tarfile.open(fileobj=blob(layer["digest"])) as files:
                files.extractall(folder, numeric_owner=True)
        return json.load(blob(manifest["config"]["digest"]))["config"]


def processes(pid):
    """The processes in the namespace of a process, by name and state: `sleep`, `Z`."""
    space = os.readlink(f"/proc/{pid}/ns/pid")
    found = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/{entry}/ns/pid") == space:
                with open(f"/proc/{entry}/stat") as file:
                    text = file.read()
                name, rest = text[text.find("(") + 1 :].rsplit(")", 1)
                found.append((name, rest.split()[0]))
    return found


@unittest.skipUnless(COMPOSE.exists(), "the loader of compose files is missing")
class Compose(PackageTest):
    def test_the_compose_file_is_valid_and_gives_no_rights(self):
        model = json.loads(run(COMPOSE, "-format", "json", SOURCE, env=ENVIRONMENT))
        self.assertEqual(set(model["services"]), {"web", "redis"})
        for name, service in model["services"].items():
            with self.subTest(name):
                self.assertIs(service["read_only"], True)
                self.assertEqual(service["cap_drop"], ["ALL"])
                self.assertEqual(service["security_opt"], ["no-new-privileges:true"])
                self.assertNotEqual(service["user"].split(":")[0], "0")
        wrong = self.write("compose.yaml", SOURCE.read_text().replace("read_only", "read_onyl"))
        self.assertIn("read_onyl", run(COMPOSE, wrong, code=1, env=ENVIRONMENT))


@needs_root
class Image(PackageTest):
    def setUp(self):
        super().setUp()
        self.root = self.folder / "root"
        self.root.mkdir()

    def start(self, *command):
        for name in ("proc", "dev", "tmp", "srv"):
            (self.root / name).mkdir(exist_ok=True)
        return self.serve(
            "unshare", "--mount", "--pid", "--ipc", "--uts", "--fork", "--kill-child",
            "/usr/bin/python3", CONTAIN, self.root, *command,
        )  # fmt: skip

    def process_1(self, server):
        """The number outside of the process that is 1 inside."""
        pid = server.process.pid
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return int(file.read().split()[0])

    def stop(self, server, number=signal.SIGTERM):
        """Signals process 1, as a runtime does; returns its exit code."""
        os.kill(self.process_1(server), number)
        return server.process.wait(STOP_DEADLINE)

    def test_the_server_alone_serves_without_rights_and_stops_in_time(self):
        image = unpack(package(f"penstock-{project.VERSION}-image.tar"), self.root)
        self.assertEqual(image["User"], f"{USER}:{USER}")
        self.assertEqual(image["StopSignal"], "SIGTERM")
        files = {path.name for path in (self.root / "usr/bin").iterdir()}
        self.assertEqual(files, {"penstock"}, "nothing but the server")
        (self.root / "srv/index.html").write_text("hello from the image")
        configuration = self.root / "etc/penstock/penstock.toml"
        text = configuration.read_text().replace('":8080"', '"127.0.0.1:0"')
        configuration.write_text(text.replace('":9090"', '"127.0.0.1:0"'))

        server = self.start(*image["Entrypoint"], *image["Cmd"])
        self.assertEqual(server.get("/index.html"), (200, "hello from the image"))
        with open(f"/proc/{self.process_1(server)}/status") as file:
            status = dict(line.split(":", 1) for line in file)
        self.assertEqual(status["NSpid"].split()[-1], "1")
        self.assertEqual(set(status["Uid"].split()), {str(USER)})
        self.assertEqual(int(status["CapEff"], 16), 0)
        started = time.monotonic()
        self.assertEqual(self.stop(server), 0, server.output)
        self.assertLess(time.monotonic() - started, 10)

    def lay_debian(self):
        """A bare Debian with Python, and the server copied into it."""
        shutil.rmtree(self.root)
        run("cp", "-a", debian_root(), self.root)
        project.install(project.binary(project.MUSL), self.root / "usr/bin/penstock", 0o755)
        (self.root / "srv/app.py").write_text(APPLICATION)
        command = ["/usr/bin/penstock", "serve", "/srv", "--listen", "127.0.0.1:0"]
        return self.start(*command, "--admin", "off")

    def test_process_1_reaps_orphans_and_finishes_requests(self):
        server = self.lay_debian()
        self.assertEqual(server.get("/orphan"), (200, f"hello from user {USER}"))
        first = self.process_1(server)

        # It lives on without its parent, and is gone soon after its last deed.
        orphan = pathlib.Path(f"/proc/{first}/root/tmp/orphan")
        self.assertTrue(server.wait_for(orphan.exists, 20), processes(first))

        def is_reaped():
            return all(name != "sh" and state != "Z" for name, state in processes(first))

        self.assertTrue(server.wait_for(is_reaped, 20), processes(first))
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            slow = pool.submit(server.get, "/slow")
            begun = orphan.with_name("slow")
            self.assertTrue(server.wait_for(begun.exists, 20), server.output)
            self.assertEqual(self.stop(server), 0, server.output)
            self.assertEqual(slow.result(), (200, f"hello from user {USER}"))

    def test_images_by_copy_from_serve_an_application(self):
        base = self.import_debian()
        for language, name, text in (
            ("python", "app.py", APPLICATION),
            ("ruby", "config.ru", RACK),
        ):
            with self.subTest(language):
                path = image.build_language(language, base)
                shutil.rmtree(self.root)
                self.root.mkdir()
                configuration = unpack(path, self.root)
                self.assertEqual(configuration["User"], f"{USER}:{USER}")
                (self.root / "srv").mkdir(exist_ok=True)
                (self.root / "srv" / name).write_text(text)
                command = [word.replace(":8080", "127.0.0.1:0") for word in configuration["Cmd"]]
                self.assertEqual(command[0], "penstock")
                server = self.start(f"/usr/bin/{command[0]}", *command[1:], "--admin", "off")
                self.assertIn("hello", server.get("/")[1])
                self.assertEqual(self.stop(server), 0, server.output)

    def import_debian(self):
        """An image of the bare Debian, in place of one from a registry."""
        name = "penstock-test-base"
        container = image.buildah("from", "--pull-never", "scratch").strip()
        self.addCleanup(image.buildah, "rm", container)
        image.buildah("copy", "--quiet", container, debian_root(), "/")
        image.buildah("commit", "--quiet", container, name)
        return f"localhost/{name}"
