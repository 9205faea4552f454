"""Follows a page of docs/quickstart as its reader does: every block of code, in order.

A block is one of these, by its fence and the line before it. Any other is an error, so that nothing
of a page goes unread.

- Behind a paragraph that is a path and a colon (`app.py`:), the block is that file. Behind
  "Add to `app.py`:" it goes to the end of a file that exists.
- A `console` block has commands behind `$ `, and below each the output that the page promises. The
  exit code must be 0. A line `...` stands for any lines, `...` in a line for any text. Output that
  the page leaves out is not compared, but `curl` and `penstock serve` must show some.
- `penstock serve` runs on while the page continues "in another terminal". Its lines must appear in
  the order of the page, among others. `penstock stop` ends it, and it must exit with 0. One that
  runs at the end of the page is an error.

What differs from a reader's machine:

- The ports 8080, 8443 and 8090 are free ones, in commands, files and output, and `penstock` gets
  options that say so. The home directory and the state of the server are in a temporary folder.
- Versions, times and numbers of processes and threads in lines of `penstock serve` may differ, and
  so may figures of `penstock bench`, except zeros.
- What a page installs comes from this machine (see `quickstart_installs`).
"""

import itertools
import os
import re
import socket
from pathlib import Path
from typing import NamedTuple

from harness import BIN, STOP_SECONDS, Child, until
from quickstart_installs import Installs

COMMAND_SECONDS = 300
PORTS = (8080, 8443, 8090)
# Variables of the shell that runs the tests, which a reader does not have.
FOREIGN = (
    "VIRTUAL_ENV",
    "PORT",
    "HOST",
    "WEB_CONCURRENCY",
    "RAILS_ENV",
    "RACK_ENV",
    "APP_ENV",
    "NODE_ENV",
)
FILE = re.compile(r"(?P<adds>Add to )?`(?P<path>[^`\s]+)`:")
FENCE = re.compile(r"```(?P<language>\S*)")
# Commands that find a running server.
VERBS = ("stop", "status", "reload", "restart", "upgrade", "certificates")


class PageError(AssertionError):
    """The page is not as its reader needs it; names the line."""

    def __init__(self, line, problem):
        super().__init__(f"line {line}: {problem}")


class FileBlock(NamedTuple):
    line: int
    path: str
    text: str
    adds: bool


class Command(NamedTuple):
    line: int
    text: str
    #: Promised lines; empty if the page shows none.
    output: list[str]


def parse(page):
    """Returns the steps of a page: files and commands, in order."""
    steps, paragraph = [], []
    lines = iter(enumerate(page.splitlines(), 1))
    for number, line in lines:
        if line.lstrip().startswith("```"):
            steps += read_block(number, line, block_lines(number, lines), name_of(paragraph))
            paragraph = []
        elif line.startswith(("    ", "\t", "~~~")):
            raise PageError(number, "code that is not between lines of three backticks")
        elif name_of(paragraph):
            # Only blank lines may stand between a name and its block.
            if line.strip():
                break
        else:
            paragraph = [*paragraph, (number, line)] if line.strip() else []
    if name := name_of(paragraph):
        raise PageError(paragraph[0][0], f"no block follows {name[0]}")
    return steps


def name_of(paragraph):
    """Returns the match of a paragraph that names a file."""
    return FILE.fullmatch(paragraph[0][1].strip()) if len(paragraph) == 1 else None


def block_lines(start, lines):
    block = []
    for number, line in lines:
        if line == "```":
            return block
        block.append((number, line))
    raise PageError(start, "the block does not end")


def read_block(start, fence, lines, name):
    match = FENCE.fullmatch(fence)
    if not match or not lines:
        raise PageError(start, f"a block that is empty or has an odd fence: {fence}")
    is_console = match["language"] == "console"
    if is_console and not name:
        return read_console(lines)
    if name and not is_console:
        text = "".join(f"{line}\n" for _, line in lines)
        return [FileBlock(start, name["path"], text, bool(name["adds"]))]
    raise PageError(start, "a block that is neither a file nor a console")


def read_console(lines):
    commands = []
    for number, line in lines:
        if line.startswith("$ "):
            commands.append(Command(number, line[2:], []))
        elif not commands:
            raise PageError(number, "output before the first command")
        elif commands[-1].text.endswith("\\") and not commands[-1].output:
            last = commands.pop()
            commands.append(last._replace(text=last.text[:-1] + line.strip()))
        else:
            commands[-1].output.append(line)
    return commands


def is_server(command):
    return re.match(r"(\S*/)?penstock serve\b", command) is not None


def generalize(line):
    """Takes numbers of one machine out of a line of `penstock serve`."""
    line = re.sub(r"ready in [\d.]+ m?s\b", "ready in N s", line)
    line = re.sub(r"\b([A-Za-z]+) v?\d+(\.\d+)+\w*", r"\1 N", line)
    line = re.sub(r"\b\d+ process(es)?\b", "N processes", line)
    return re.sub(r" x \d+ threads\b", " x N threads", line)


def generalize_figures(line):
    """Takes the figures out of a line of `penstock bench`."""
    return re.sub(r" +(?!0$)\d[\d.]*", " N", line)


def pattern_of(line):
    return re.escape(line).replace(re.escape("..."), ".*")


class Reader:
    """One run of a page, in an empty folder."""

    def __init__(self, folder, has_penstock=False, environment=None, seconds=15):
        self.folder, self.seconds = folder, seconds
        self.home = folder / "home"
        self.start = folder / "work"
        self.state = folder / "shell"
        programs = folder / "bin"
        for new in (self.home, self.start, programs):
            new.mkdir()
        self.state.write_text(f"cd {self.start}\n")
        # As in a terminal, where it shows none for so little.
        (self.home / ".curlrc").write_text("no-progress-meter\n")
        self.installs = Installs(programs, environment)
        if has_penstock:
            self.installs.link(programs / "penstock")
        self.ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        self.server = None
        self.env = {
            "HOME": str(self.home),
            "PATH": f"{programs}:{os.environ['PATH']}",
            "STATE_DIRECTORY": str(self.home / ".local" / "share" / "penstock"),
            "PYTHONDONTWRITEBYTECODE": "1",
            "LC_ALL": "C.UTF-8",
        }

    def follow(self, page):
        """Does what the page says; fails with its line and the difference."""
        last = 0
        try:
            for step in parse(page):
                last = step.line
                if isinstance(step, FileBlock):
                    self.write(step)
                else:
                    self.do(step)
            if self.server:
                raise PageError(last, "the page ends, and its server runs")
        finally:
            self.end_server()

    def end_server(self):
        """Ends a server that a wrong page leaves behind, so that it can remove its sockets."""
        if self.server:
            try:
                self.server.terminate(STOP_SECONDS)
            except AssertionError:
                # The page's own error is the one to report.
                pass
            finally:
                self.server.kill()
                self.server = None

    def write(self, block):
        path = self.cwd() / block.path
        if block.adds and not path.exists():
            raise PageError(block.line, f"nothing to add to: {block.path}")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a" if block.adds else "w") as file:
            file.write(self.local(block.text))

    def cwd(self):
        """Returns the folder that the shell is in."""
        return Path(re.search(r"^cd (.+)$", self.state.read_text(), re.MULTILINE)[1])

    def local(self, text):
        """Puts the ports of this run into a text."""
        ports = "|".join(map(str, self.ports))
        return re.sub(rf"(?<=:)({ports})\b", lambda found: str(self.ports[int(found[1])]), text)

    def do(self, command):
        if is_server(command.text):
            self.serve(command)
            return
        output = self.run(command)
        if not command.output:
            if re.search(r"\bcurl\b", command.text):
                raise PageError(command.line, "the page shows nothing of this output")
        else:
            self.compare(command, output)
        if re.search(r"\bpenstock stop\b", command.text):
            self.wait_stopped(command)

    def serve(self, command):
        if self.server:
            raise PageError(command.line, "a server runs already: the page does not stop it")
        if not command.output:
            raise PageError(command.line, "the page shows nothing that the server prints")
        text = f"exec {self.with_options(self.local(command.text))}"
        self.server = self.child(text)
        promised = [pattern_of(generalize(self.local(line))) for line in command.output]

        def all_found():
            ended = self.server.exit_code() is not None
            found = iter([generalize(line) for line in self.server.lines])
            rest = [line for line in promised if not any(re.fullmatch(line, it) for it in found)]
            if rest and ended:
                raise AssertionError("the server ended")
            return not rest

        try:
            until("what the page shows", all_found, self.seconds)
        except AssertionError as error:
            raise self.difference(command, f"{error}", self.server.lines) from None

    def with_options(self, text):
        listen, https, admin = (f"127.0.0.1:{port}" for port in self.ports.values())
        for verb in ("serve", *VERBS):
            options = f"--admin {admin}"
            if verb == "serve":
                options += f" --listen {listen}"
                if "--domain" in text:
                    options += f" --listen-https {https}"
            text = re.sub(rf"\bpenstock {verb}\b", rf"penstock {verb} {options}", text)
        return text

    def run(self, command):
        """Runs a command to its end; returns its output."""
        text = self.installs.stand_in(command.text, self.cwd()) or command.text
        text = self.with_options(self.local(text))
        # What the command changes in its shell is there for the next.
        keep = (
            f'status=$?; {{ declare -px; printf "cd %q\\n" "$PWD"; }} >{self.state}; exit $status'
        )
        child = self.child(f"{text}\n{keep}")
        try:
            code = until("the end of the command", child.exited, COMMAND_SECONDS)[0]
            self.installs.clean(command.text, self.cwd())
        except AssertionError as error:
            raise self.difference(command, f"{error}", child.lines) from None
        finally:
            child.kill()
        if code != 0:
            raise self.difference(command, f"exited with {code}", child.lines)
        return child.lines

    def child(self, script):
        unset = itertools.chain.from_iterable(("-u", name) for name in FOREIGN)
        shell = ["env", *unset, "bash", "-c", f". {self.state}\n{script}"]
        return Child(shell, self.env, self.start)

    def compare(self, command, output):
        promised = [self.local(line) for line in command.output]
        if "bench" in command.text:
            promised, output = (map(generalize_figures, lines) for lines in (promised, output))
        lines = ["(?:.*\n)*" if line == "..." else f"{pattern_of(line)}\n" for line in promised]
        shown = "".join(f"{line.rstrip()}\n" for line in output)
        if not re.fullmatch("".join(lines), shown):
            raise self.difference(command, "other output than the page shows", output)

    def wait_stopped(self, command):
        if not self.server:
            raise PageError(command.line, "no server runs")
        server, self.server = self.server, None
        try:
            code = until("the end of the server", server.exited, STOP_SECONDS)[0]
        except AssertionError as error:
            raise self.difference(command, f"{error}", server.lines) from None
        finally:
            server.kill()
        if code != 0:
            raise self.difference(command, f"the server exited with {code}", server.lines)

    def difference(self, command, problem, lines):
        shown = "\n  ".join(lines[-60:])
        page = "\n  ".join(command.output)
        return PageError(
            command.line,
            f"{problem}\ncommand: {command.text}\npage:\n  {page}\nhere:\n  {shown}\n({BIN})",
        )


def free_ports(count):
    """Returns ports that were free a moment ago."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports
