#!/usr/bin/python3
"""Makes the wheels for Python: penstock-VERSION-py3-none-PLATFORM.whl.

    packaging/wheel.py [TRIPLE]...      each target that is built, unless named

A wheel is a zip archive with a list of its files, so that the binary that is built already goes in
as it is: maturin would build it again. glibc 2.17 is what the tag manylinux2014 promises, and a
static binary runs where any C library does.
"""

import base64
import hashlib
import sys
import time
import zipfile

import project

PLATFORMS = {
    "x86_64-unknown-linux-gnu": ["manylinux_2_17_x86_64", "manylinux2014_x86_64"],
    "x86_64-unknown-linux-musl": ["musllinux_1_2_x86_64"],
    "aarch64-unknown-linux-gnu": ["manylinux_2_17_aarch64", "manylinux2014_aarch64"],
    # The same for both, unless one for glibc is built.
    "aarch64-unknown-linux-musl": [
        "manylinux_2_17_aarch64",
        "manylinux2014_aarch64",
        "musllinux_1_2_aarch64",
    ],
}

METADATA = """\
Metadata-Version: 2.4
Name: penstock
Version: {version}
Summary: {summary}
Author: {authors}
License-Expression: {license}
License-File: LICENSE
Requires-Python: >=3.8
Classifier: Environment :: No Input/Output (Daemon)
Classifier: Intended Audience :: Developers
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: Python :: 3
Classifier: Topic :: Internet :: WWW/HTTP :: HTTP Servers
Classifier: Topic :: Internet :: WWW/HTTP :: WSGI :: Server
Description-Content-Type: text/markdown

{readme}"""

README = """\
# Penstock

A web server in one binary: static files, an application server for Python (WSGI, ASGI) and Ruby
(Rack), a reverse proxy with queues, a cache, a hub for event streams, and a load generator.

    pip install penstock
    penstock serve                      # the application in this folder
    penstock serve hello:application    # a module and a callable

`python -m penstock` is the same program.
"""


def wheel_tags(platforms):
    lines = ["Wheel-Version: 1.0", "Generator: penstock", "Root-Is-Purelib: false"]
    return "\n".join(lines + [f"Tag: py3-none-{platform}" for platform in platforms]) + "\n"


def files_of(triple):
    """The archive's files in order: name, bytes and mode."""
    info = f"penstock-{project.VERSION}.dist-info"
    data = f"penstock-{project.VERSION}.data"
    sources = project.ROOT / "packaging/python"
    for source in sorted(sources.glob("*.py")):
        yield f"penstock/{source.name}", source.read_bytes(), 0o644
    yield f"{data}/scripts/penstock", project.binary(triple).read_bytes(), 0o755
    share = project.fresh_folder(f"wheel-{triple}")
    project.share(share)
    for path in sorted(share.rglob("*")):
        if path.is_file():
            yield f"{data}/data/share/{path.relative_to(share)}", path.read_bytes(), 0o644
    metadata = METADATA.format(
        version=project.VERSION,
        summary=project.SUMMARY,
        license=project.LICENSE,
        authors=project.AUTHORS,
        readme=README,
    )
    yield f"{info}/METADATA", metadata.encode(), 0o644
    yield f"{info}/WHEEL", wheel_tags(PLATFORMS[triple]).encode(), 0o644
    yield f"{info}/licenses/LICENSE", (project.ROOT / "LICENSE").read_bytes(), 0o644


def record_line(name, content):
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def make(triple):
    name = f"penstock-{project.VERSION}-py3-none-{'.'.join(PLATFORMS[triple])}.whl"
    path = project.PACKAGES / name
    date = time.gmtime(project.epoch())[:6]
    record_name = f"penstock-{project.VERSION}.dist-info/RECORD"
    record = ""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:

        def add(name, content, mode):
            entry = zipfile.ZipInfo(name, date)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = (0o100000 | mode) << 16
            archive.writestr(entry, content)

        for name, content, mode in files_of(triple):
            add(name, content, mode)
            record += record_line(name, content)
        add(record_name, (record + f"{record_name},,\n").encode(), 0o644)
    return path


def main():
    built = [path.parent.name for path in project.PACKAGES.glob("bin/*/penstock")]
    for triple in sys.argv[1:] or sorted(built):
        print(f"wheel: {make(triple)}")


if __name__ == "__main__":
    main()
