#!/usr/bin/python3
"""Makes the gem for Ruby: penstock-VERSION-x86_64-linux.gem, with launcher and Rack handler.

It has the static binary, which runs whatever the C library is, so that `gem install` finds one gem
for glibc and musl.
"""

import os

import project

PLATFORMS = {project.MUSL: "x86_64-linux", project.ARM_MUSL: "aarch64-linux"}

SPECIFICATION = """\
# frozen_string_literal: true

Gem::Specification.new do |spec|
  spec.name = "penstock"
  spec.version = "{version}"
  spec.platform = "{platform}"
  spec.summary = "{summary}"
  spec.authors = ["{authors}"]
  spec.license = "{license}"
  spec.required_ruby_version = ">= 2.7"
  spec.files = Dir["{{exe,lib,libexec,share}}/**/*", "LICENSE"].select {{ |path| File.file?(path) }}.sort
  spec.bindir = "exe"
  spec.executables = ["penstock"]
  spec.metadata = {{ "rubygems_mfa_required" => "true" }}
end
"""


def make(triple, platform):
    folder = project.fresh_folder(f"gem-{platform}")
    sources = project.ROOT / "packaging/ruby"
    for source in sorted(sources.rglob("*")):
        if source.is_file():
            mode = 0o755 if source.parent.name == "exe" else 0o644
            project.install(source, folder / source.relative_to(sources), mode)
    project.install(project.binary(triple), folder / "libexec/penstock", 0o755)
    project.share(folder / "share")
    project.install(project.ROOT / "LICENSE", folder / "LICENSE")
    project.write(
        folder / "lib/penstock/version.rb",
        f'# frozen_string_literal: true\n\nmodule Penstock\n  VERSION = "{project.VERSION}"\nend\n',
    )
    specification = SPECIFICATION.format(
        version=project.VERSION,
        platform=platform,
        summary=project.SUMMARY,
        license=project.LICENSE,
        authors=project.AUTHORS,
    )
    project.write(folder / "penstock.gemspec", specification)
    project.set_times(folder)
    path = project.PACKAGES / f"penstock-{project.VERSION}-{platform}.gem"
    environment = os.environ | {"SOURCE_DATE_EPOCH": str(project.epoch())}
    # Silent but for errors: a missing homepage is no error.
    project.run(
        "gem", "build", "--quiet", "--output", path, "penstock.gemspec", cwd=folder, env=environment
    )
    return path


def main():
    for triple, platform in PLATFORMS.items():
        if (project.PACKAGES / "bin" / triple / "penstock").is_file():
            print(f"gem: {make(triple, platform)}")


if __name__ == "__main__":
    main()
