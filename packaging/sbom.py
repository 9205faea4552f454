#!/usr/bin/python3
"""Makes penstock-VERSION.cdx.json: the crates of the binary, as CycloneDX 1.5 lists it.

It is what `cargo metadata` knows of the crates that the binaries link: name, version, licence, checksum of
Cargo.lock, and which needs which. Crates of tests and of other systems are left out, and so are those that
run only while it is built: build scripts, procedural macros, and what these need.
"""

import json
import tomllib
import uuid

import project

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "penstock")


def package_url(package):
    return f"pkg:cargo/{package['name']}@{package['version']}"


def is_macro(package):
    """Whether a crate is a procedural macro: the compiler runs it, no binary links it."""
    return any("proc-macro" in target["kind"] for target in package["targets"])


def linked(metadata):
    """The crates that the binary links, each with those that it links."""
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    packages = {package["id"]: package for package in metadata["packages"]}
    start = next(i for i, package in packages.items() if package["name"] == "penstock")
    found, left = {}, [start]
    while left:
        identifier = left.pop()
        if identifier in found:
            continue
        needs = [
            dependency["pkg"]
            for dependency in nodes[identifier]["deps"]
            # No kind is a need at run time; the others are `build` and `dev`.
            if any(kind["kind"] is None for kind in dependency["dep_kinds"])
            and not is_macro(packages[dependency["pkg"]])
        ]
        found[identifier] = sorted(needs)
        left.extend(needs)
    return packages, found, start


def component(package, checksums):
    url = package_url(package)
    entry = {
        "type": "library",
        "bom-ref": url,
        "name": package["name"],
        "version": package["version"],
        "purl": url,
    }
    if package["description"]:
        entry["description"] = " ".join(package["description"].split())
    if package["license"]:
        # Cargo's old form of OR is a slash.
        entry["licenses"] = [{"expression": package["license"].replace("/", " OR ")}]
    checksum = checksums.get((package["name"], package["version"]))
    if checksum:
        entry["hashes"] = [{"alg": "SHA-256", "content": checksum}]
    return entry


def document():
    metadata = json.loads(
        project.run(
            "cargo", "metadata", "--format-version", "1", "--locked",
            # The static binaries have an allocator of their own besides.
            "--filter-platform", project.GLIBC, "--filter-platform", project.MUSL, cwd=project.ROOT,
        )
    )  # fmt: skip
    lock = tomllib.loads((project.ROOT / "Cargo.lock").read_text())
    checksums = {(p["name"], p["version"]): p.get("checksum") for p in lock["package"]}
    packages, found, start = linked(metadata)
    ordered = sorted(found, key=lambda identifier: package_url(packages[identifier]))
    names = json.dumps([package_url(packages[identifier]) for identifier in ordered])
    program = component(packages[start], checksums) | {"type": "application"}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(NAMESPACE, names)}",
        "version": 1,
        "metadata": {"component": program},
        "components": [component(packages[i], checksums) for i in ordered if i != start],
        "dependencies": [
            {
                "ref": package_url(packages[i]),
                "dependsOn": sorted(package_url(packages[need]) for need in found[i]),
            }
            for i in ordered
        ],
    }


def main():
    project.PACKAGES.mkdir(parents=True, exist_ok=True)
    path = project.PACKAGES / f"penstock-{project.VERSION}.cdx.json"
    bom = document()
    path.write_text(json.dumps(bom, indent=1) + "\n")
    print(f"sbom: {path} ({len(bom['components'])} components)")


if __name__ == "__main__":
    main()
