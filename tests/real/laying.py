"""Lays a project of `layouts` into a folder: files, virtual environment, generated project.

`test_applications` does so on this system, `packaging/tests/test_layouts.py` in a root of its own. There,
the folder has one path here and another one for the programs that run in that root.
"""

import re
from pathlib import Path
from typing import NamedTuple

import layouts

# What a project with one page does without.
SKIPPED = (
    *"git bundle javascript spring listen bootsnap test system-test".split(),
    *"active-record action-cable active-storage action-mailbox".split(),
)
RAILS_NEW = ["rails", "new", ".", "--api", *(f"--skip-{option}" for option in SKIPPED)]
HELLO_ROUTE = """\
Rails.application.routes.draw do
  root to: ->(_env) { [200, { "Content-Type" => "text/plain" }, ["Hello"]] }
end
"""


class Placed(NamedTuple):
    """How a project's virtual environment is found: by variables, or by a link at a path."""

    variables: dict[str, str]
    link: Path | None = None


def place_environment(layout, project, environment):
    """Says how the layout's tool would place the environment; paths are those of the server."""
    parent = project.parent
    # A variable set outside belongs to another environment.
    variables = {"VIRTUAL_ENV": ""}
    if not layout.environment:
        return Placed({})
    if layout.place in ("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT"):
        return Placed(variables | {layout.place: str(environment)})
    if layout.place == "POETRY":
        return Placed(variables, parent / ".cache" / layouts.poetry_place(project))
    if layout.place == "PIPENV":
        variables["WORKON_HOME"] = str(parent / "envs")
        return Placed(variables, parent / "envs" / layouts.pipenv_place(project))
    return Placed(variables, Path(layout.place.format(project=project, parent=parent, home=parent)))


def generate(layout, folder, environment, run):
    """Runs the framework's own generator; `run` runs a command in the project's folder."""
    if layout.generator == "django":
        run([str(environment / "bin/django-admin"), "startproject", "mysite", "."])
    if layout.generator == "rails":
        run(RAILS_NEW)
        keep_gem_of_rails(folder / "Gemfile")
        (folder / "config/routes.rb").write_text(HELLO_ROUTE)


def keep_gem_of_rails(gemfile):
    """Leaves out the gems of a Gemfile that a project with one page does not use."""
    lines = gemfile.read_text().splitlines()
    is_kept = re.compile(r"gem ['\"]rails['\"]|(?!\s*gem )").match
    gemfile.write_text("\n".join([*filter(is_kept, lines), ""]))


def write_files(layout, folder):
    """Writes the layout's files; those of a generated project are added to, or left out."""
    for name, text in layout.files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            file.unlink()
        elif layout.generator and file.exists():
            file.write_text(file.read_text() + text)
        else:
            file.write_text(text)
            file.chmod(0o755)
