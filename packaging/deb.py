#!/usr/bin/python3
"""Makes the Debian package: penstock_VERSION_amd64.deb, and arm64 where that binary is built.

The unit is the one that docs/deployment.md shows, with a user of its own, and the configuration of
logrotate that of docs/running.md. DEBFULLNAME and DEBEMAIL name the maintainer, as for Debian's own
tools.
"""

import gzip
import hashlib
import os
import shutil
import subprocess
import time

import project

SOURCES = project.ROOT / "packaging/debian"
ARCHITECTURES = {
    project.GLIBC: ("amd64", "libc6 (>= 2.17), "),
    project.ARM_MUSL: ("arm64", ""),
}

CONTROL = """\
Package: penstock
Version: {version}
Architecture: {architecture}
Maintainer: {maintainer}
Installed-Size: {size}
Depends: {libraries}passwd, init-system-helpers (>= 1.54)
Recommends: logrotate
Suggests: python3, ruby
Section: httpd
Priority: optional
Description: web server, application server and proxy in one binary
 Penstock serves static files, and applications in Python (WSGI, ASGI) and
 Ruby (Rack). It is a reverse proxy with queues, a cache, a hub for event
 streams, and a load generator.
"""

# The project has no address for mail, and Debian wants one. Nothing is ever delivered to `.invalid`
# (RFC 2606, section 2). Reports go where SECURITY.md says.
NO_ADDRESS = "no-reply@penstock.invalid"

COPYRIGHT = """\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/
Upstream-Name: penstock

Files: *
Copyright: 2026 {authors}
License: Apache-2.0
 On Debian systems, the text of the Apache License, version 2.0, is in
 /usr/share/common-licenses/Apache-2.0.
"""


def maintainer():
    name = os.environ.get("DEBFULLNAME") or project.AUTHORS
    return f"{name} <{os.environ.get('DEBEMAIL') or NO_ADDRESS}>"


def compress(path):
    """Replaces a file by its gzip archive, without a time in it."""
    packed = path.with_name(f"{path.name}.gz")
    packed.write_bytes(gzip.compress(path.read_bytes(), mtime=0))
    path.unlink()


def lay_share(root):
    """Puts what the binary says about itself where Debian looks for it."""
    share = root / "usr/share"
    project.share(share)
    project.share_documents(share)
    for page in share.glob("man/man*/*"):
        compress(page)
    (share / "zsh/site-functions").rename(share / "zsh/vendor-completions")
    document = share / "doc/penstock"
    (document / "examples").mkdir(parents=True)
    example = share / "penstock/penstock.toml.example"
    example.rename(document / "examples/penstock.toml")
    project.write(document / "copyright", COPYRIGHT.format(authors=project.AUTHORS))
    project.write(document / "changelog", changelog())
    compress(document / "changelog")
    project.install(SOURCES / "index.html", share / "penstock/welcome/index.html")


def changelog():
    date = time.strftime("%a, %d %b %Y %H:%M:%S +0000", time.gmtime(project.epoch()))
    return (
        f"penstock ({project.VERSION}) unstable; urgency=medium\n\n"
        "  * See CHANGELOG.md of the sources.\n\n"
        f" -- {maintainer()}  {date}\n"
    )


def lay_service(root):
    unit = project.file_of_document("deployment.md", "/etc/systemd/system/penstock.service")
    if "User=www-data\n" not in unit:
        project.fail("the unit of docs/deployment.md has another user than www-data")
    unit = unit.replace("User=www-data\n", "User=penstock\n")
    unit = unit.replace(
        "[Unit]\n", "[Unit]\nDescription=Penstock web server\nDocumentation=man:penstock(1)\n", 1
    )
    project.write(root / "usr/lib/systemd/system/penstock.service", unit)
    rotate = project.file_of_document("running.md", "/etc/logrotate.d/penstock")
    project.write(root / "etc/logrotate.d/penstock", rotate)
    project.install(SOURCES / "penstock.toml", root / "etc/penstock/penstock.toml")


def lay_control(root, architecture, libraries):
    files = sorted(path for path in root.rglob("*") if path.is_file())
    size = sum(path.stat().st_size for path in files) // 1024
    sums = [
        f"{hashlib.md5(path.read_bytes()).hexdigest()}  {path.relative_to(root)}\n"
        for path in files
        if path.relative_to(root).parts[0] != "etc"
    ]
    control = root / "DEBIAN"
    project.write(control / "md5sums", "".join(sums))
    configuration = [f"/{path.relative_to(root)}\n" for path in sorted(root.glob("etc/*/*"))]
    project.write(control / "conffiles", "".join(configuration))
    text = CONTROL.format(
        version=project.VERSION,
        architecture=architecture,
        maintainer=maintainer(),
        size=size,
        libraries=libraries,
    )
    project.write(control / "control", text)
    for script in ("postinst", "prerm", "postrm"):
        project.install(SOURCES / script, control / script, 0o755)


def make(triple, architecture, libraries):
    root = project.fresh_folder(f"deb-{architecture}")
    project.install(project.binary(triple), root / "usr/bin/penstock", 0o755)
    lay_share(root)
    lay_service(root)
    lay_control(root, architecture, libraries)
    for folder in [root, *(path for path in root.rglob("*") if path.is_dir())]:
        folder.chmod(0o755)
    project.set_times(root)
    path = project.PACKAGES / f"penstock_{project.VERSION}_{architecture}.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", root, path],
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"SOURCE_DATE_EPOCH": str(project.epoch())},
    )
    return path


def main():
    if not shutil.which("dpkg-deb"):
        project.fail("dpkg-deb is missing: run scripts/setup packages")
    for triple, (architecture, libraries) in ARCHITECTURES.items():
        if (project.PACKAGES / "bin" / triple / "penstock").is_file():
            print(f"deb: {make(triple, architecture, libraries)}")


if __name__ == "__main__":
    main()
