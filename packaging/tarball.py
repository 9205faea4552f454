#!/usr/bin/python3
"""Makes penstock-VERSION-TRIPLE.tar.gz: the binary, its manual pages and install.sh.

packaging/tarball.py [TRIPLE]...      each target that is built, unless named
"""

import hashlib
import shutil
import sys

import project


def checksums(folder):
    """The text of SHA256SUMS for all files of a folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder)}\n"
        for path in files
    ]
    return "".join(lines)


def make(triple):
    name = f"penstock-{project.VERSION}-{triple}"
    folder = project.fresh_folder(name)
    project.install(project.binary(triple), folder / "bin/penstock", 0o755)
    project.share(folder / "share")
    project.share_documents(folder / "share")
    for source in ("LICENSE", "README.md", "CHANGELOG.md"):
        project.install(project.ROOT / source, folder / source)
    project.install(project.ROOT / "packaging/install.sh", folder / "install.sh", 0o755)
    sbom = project.PACKAGES / f"penstock-{project.VERSION}.cdx.json"
    if sbom.is_file():
        project.install(sbom, folder / sbom.name)
    project.write(folder / "SHA256SUMS", checksums(folder))
    archive = project.PACKAGES / f"{name}.tar.gz"
    project.write_tar(archive, folder, name)
    # For debuggers: a release without it cannot be looked into.
    debug = project.binary(triple).with_name("penstock.debug")
    if debug.is_file():
        symbols = project.fresh_folder(f"{name}-debug")
        shutil.copyfile(debug, symbols / "penstock.debug")
        project.write_tar(project.PACKAGES / f"{name}-debug.tar.gz", symbols, f"{name}-debug")
    return archive


def main():
    built = [path.parent.name for path in project.PACKAGES.glob("bin/*/penstock")]
    for triple in sys.argv[1:] or sorted(built):
        print(f"tarball: {make(triple)}")


if __name__ == "__main__":
    main()
