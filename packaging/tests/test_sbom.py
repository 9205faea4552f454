"""The list of crates: all that the binaries have code of, and none that only builds them."""

import json
import re
import tomllib
import unittest

from support import package, project

# Run by the compiler or by a build script: no code of theirs is in a binary.
ONLY_BUILDING = ("cc", "prost-derive", "serde_derive", "syn", "thiserror-impl", "tokio-macros")
# Crates of the workspace are not of a registry.
OWN = re.compile(r"^penstock")
# Where a crate's source was, as messages of panics say it.
SOURCE = re.compile(rb"/cargo/registry/src/[^/]+/([A-Za-z0-9_-]+)-(\d+\.[^/]+)/")


class Sbom(unittest.TestCase):
    def setUp(self):
        self.bom = json.loads(package(f"penstock-{project.VERSION}.cdx.json").read_text())
        self.listed = {(part["name"], part["version"]) for part in self.bom["components"]}

    def test_every_crate_with_code_in_a_binary_is_listed(self):
        for triple in (project.GLIBC, project.MUSL, project.ARM_MUSL):
            with self.subTest(triple):
                found = SOURCE.findall(project.binary(triple).read_bytes())
                crates = {(name.decode(), version.decode()) for name, version in found}
                self.assertGreater(len(crates), 50)
                self.assertEqual(sorted(crates - self.listed), [])

    def test_crates_that_only_build_it_are_not_listed(self):
        lock = tomllib.loads((project.ROOT / "Cargo.lock").read_text())
        self.assertLessEqual(set(ONLY_BUILDING), {crate["name"] for crate in lock["package"]})
        names = {name for name, _ in self.listed}
        self.assertEqual(names.intersection(ONLY_BUILDING), set())

    def test_each_has_a_licence_and_what_is_of_a_registry_a_checksum(self):
        for part in self.bom["components"]:
            with self.subTest(part["name"]):
                self.assertTrue(part["licenses"][0]["expression"])
                self.assertEqual(bool(OWN.match(part["name"])), "hashes" not in part)

    def test_what_a_crate_needs_is_listed_too(self):
        references = {part["bom-ref"] for part in self.bom["components"]}
        references.add(self.bom["metadata"]["component"]["bom-ref"])
        for entry in self.bom["dependencies"]:
            self.assertLessEqual({entry["ref"], *entry["dependsOn"]}, references)
