#!/usr/bin/python3
"""Makes the OCI images, without a daemon: penstock-VERSION-image.tar (an OCI archive).

    packaging/image.py                              the server alone, from scratch
    packaging/image.py python --base IMAGE          with Python: from a local image or archive
    packaging/image.py ruby --base IMAGE            with Ruby

Load one with `podman load -i FILE` or `docker load -i FILE`.
"""

import argparse
import os
import pathlib
import shutil

import project

SOURCES = project.ROOT / "packaging/image"
AUTHORITIES = pathlib.Path("/etc/ssl/certs/ca-certificates.crt")
NAME = "penstock"


def lay_root(root):
    """The files of the image from scratch."""
    project.install(project.binary(project.MUSL), root / "usr/bin/penstock", 0o755)
    if not AUTHORITIES.is_file():
        project.fail(f"{AUTHORITIES} is missing: install ca-certificates")
    project.install(AUTHORITIES, root / "etc/ssl/certs/ca-certificates.crt")
    project.install(SOURCES / "penstock.toml", root / "etc/penstock/penstock.toml")
    project.write(
        root / "etc/passwd",
        "root:x:0:0:root:/:/sbin/nologin\npenstock:x:65532:65532:penstock:/srv:/sbin/nologin\n",
    )
    project.write(root / "etc/group", "root:x:0:\npenstock:x:65532:\n")
    (root / "srv").mkdir()
    for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        folder.chmod(0o755)
    (root / "tmp").mkdir()
    (root / "tmp").chmod(0o1777)
    project.set_times(root)


def buildah(*arguments):
    """Runs buildah with storage of its own below `PACKAGES`, and without a daemon."""
    storage = project.PACKAGES / "work/containers"
    environment = os.environ | {"BUILDAH_ISOLATION": "chroot"}
    # A driver with mounts would leave them behind when it is killed. STORAGE_DRIVER has no effect on
    # a root that is named.
    options = ["--storage-driver", "vfs", "--root", storage / "root", "--runroot", storage / "run"]
    return project.run("buildah", *options, *arguments, env=environment)


def build(file, name, context, *arguments):
    time = ["--timestamp", project.epoch()]
    buildah("bud", "--pull-never", "--quiet", *time, *arguments, "-t", name, "-f", file, context)
    archive = project.PACKAGES / f"{name}-{project.VERSION}-image.tar"
    archive.unlink(missing_ok=True)
    buildah("push", "--quiet", name, f"oci-archive:{archive}:{name}:{project.VERSION}")
    return archive


def build_server():
    context = project.fresh_folder("image")
    lay_root(context / "rootfs")
    return build(SOURCES / "Containerfile", NAME, context)


def build_language(language, base):
    """An image by COPY --from; `base` replaces the one that the file names."""
    context = project.fresh_folder(f"image-{language}")
    arguments = ["--build-arg", f"PENSTOCK=localhost/{NAME}"]
    if base:
        arguments += ["--build-arg", f"BASE={base}"]
    name = f"{NAME}-{language}"
    return build(SOURCES / f"{language}.Containerfile", name, context, *arguments)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("language", nargs="?", choices=["python", "ruby"])
    parser.add_argument("--base", help="the image that it starts from")
    arguments = parser.parse_args()
    if not shutil.which("buildah"):
        project.fail("buildah is missing: run scripts/setup packages")
    if arguments.language:
        path = build_language(arguments.language, arguments.base)
    else:
        path = build_server()
    print(f"image: {path} ({path.stat().st_size} bytes)")


if __name__ == "__main__":
    main()
