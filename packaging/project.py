"""What the scripts of this folder share: names, versions, places, and files from the documents."""

import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
PACKAGES = TARGET / "packages"
WORKSPACE = tomllib.loads((ROOT / "Cargo.toml").read_text())["workspace"]["package"]
VERSION = WORKSPACE["version"]
AUTHORS = WORKSPACE["authors"][0]
LICENSE = WORKSPACE["license"]
PROGRAM = tomllib.loads((ROOT / "crates/penstock/Cargo.toml").read_text())["package"]
SUMMARY = PROGRAM["description"]

GLIBC = "x86_64-unknown-linux-gnu"
MUSL = "x86_64-unknown-linux-musl"
ARM_MUSL = "aarch64-unknown-linux-musl"


def fail(text):
    """Ends the script with an error."""
    sys.exit(f"{pathlib.Path(sys.argv[0]).name}: {text}")


def run(*command, **options):
    """Runs a program that must succeed; returns what it prints."""
    command = [str(word) for word in command]
    done = subprocess.run(command, text=True, stdout=subprocess.PIPE, check=False, **options)
    if done.returncode != 0:
        fail(f"{' '.join(command)} failed with {done.returncode}: {done.stdout[-2000:]}")
    return done.stdout


def epoch():
    """The time of all files in packages, in seconds: that of the commit."""
    if "SOURCE_DATE_EPOCH" in os.environ:
        return int(os.environ["SOURCE_DATE_EPOCH"])
    return int(run("git", "log", "-1", "--format=%ct", cwd=ROOT))


def binary(triple):
    """The stripped binary that packaging/build has made for a target."""
    path = PACKAGES / "bin" / triple / "penstock"
    if not path.is_file():
        fail(f"{path} is missing: run packaging/build {triple}")
    return path


def fresh_folder(name):
    """An empty folder below `PACKAGES/work`."""
    folder = PACKAGES / "work" / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def file_of_document(document, path):
    """The file that a document shows: an indented block whose first line is `# PATH`."""
    lines = (ROOT / "docs" / document).read_text().splitlines()
    if f"    # {path}" not in lines:
        fail(f"docs/{document} shows no {path}")
    first = lines.index(f"    # {path}") + 1
    block = []
    for line in lines[first:]:
        if line and not line.startswith("    "):
            break
        block.append(line.removeprefix("    "))
    return "\n".join(block).rstrip() + "\n"


def share(folder):
    """Writes what goes below PREFIX/share into a folder: made by the binary itself."""
    program = binary(GLIBC)
    run(program, "man", "--all", folder / "man")
    completions = {
        "bash": "bash-completion/completions/penstock",
        "zsh": "zsh/site-functions/_penstock",
        "fish": "fish/vendor_completions.d/penstock.fish",
    }
    for shell, name in completions.items():
        write(folder / name, run(program, "completions", shell))
    own = folder / "penstock"
    write(own / "penstock.schema.json", run(program, "config", "schema"))
    write(own / "penstock.toml.example", run(program, "config", "example"))


def share_documents(folder):
    """Writes the documents for users, without pictures and measurements, below PREFIX/share."""
    for part in ("docs", "docs/quickstart", "docs/migrate", "docs/migrate/from"):
        for page in sorted((ROOT / part).glob("*.md")):
            install(page, folder / "doc/penstock" / page.relative_to(ROOT))


def write(path, text, mode=0o644):
    """Writes a file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


def install(source, path, mode=0o644):
    """Copies a file, and makes the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, path)
    path.chmod(mode)


def set_times(folder):
    """Gives every file below a folder the time of the commit."""
    for path in [folder, *folder.rglob("*")]:
        os.utime(path, (epoch(), epoch()), follow_symlinks=False)


def write_tar(path, folder, top):
    """Writes a tar archive of a folder that is the same whenever it is made."""

    def normalize(entry):
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = "root"
        entry.mtime = epoch()
        return entry

    plain = path.with_suffix(".tmp")
    with tarfile.open(plain, "w", format=tarfile.GNU_FORMAT) as archive:
        archive.add(folder, arcname=top, recursive=False, filter=normalize)
        for item in sorted(folder.rglob("*")):
            name = f"{top}/{item.relative_to(folder)}"
            archive.add(item, arcname=name, recursive=False, filter=normalize)
    with path.open("wb") as file:
        # Without its own name and time in the header.
        subprocess.run(["gzip", "-9", "-n", "-c", plain], stdout=file, check=True)
    plain.unlink()
