"""Rails with Action Cable, and Redmine: makes the projects and tests them once they serve.

`test_applications` uses it. The gems are Debian's packages; the commands are those of the projects'
own guides.
"""

import asyncio
import contextlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from urllib.parse import urljoin

import aiohttp
import requests

from browser import Browser
from test_redis import Redis

SECONDS = 60
PROCESSES = 2
CLIENTS_MAX = 200
REDMINE = Path("/usr/share/redmine")
OPTIONS = "git bundle javascript spring listen bootsnap test system-test".split()


def run(folder, *command, **env):
    """Runs a command of the project to its end; shows its output when it fails."""
    assignments = [f"{name}={value}" for name, value in env.items()]
    line = ["env", "RAILS_ENV=production", *assignments, *map(str, command)]
    done = subprocess.run(
        line, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    if done.returncode:
        raise AssertionError(f"{command} exited with {done.returncode}: {done.stdout}{done.stderr}")


def is_used(line):
    return re.match(r"gem ['\"](rails|sqlite3)['\"]", line)


@contextlib.contextmanager
def rails(folder, environment):
    """Makes a project by `rails new` and adds a page and a channel; returns its variables."""
    ours = folder.parent / "ours"
    folder.rename(ours)
    run(folder.parent, "rails", "new", folder.name, *(f"--skip-{option}" for option in OPTIONS))
    shutil.copytree(ours, folder, dirs_exist_ok=True)
    # The gems that are used, and Redis, which its cable.yml requires.
    gemfile = folder / "Gemfile"
    lines = gemfile.read_text().splitlines()
    kept = [line for line in lines if not line.lstrip().startswith("gem ") or is_used(line)]
    gemfile.write_text("\n".join([*kept, 'gem "sprockets-rails"', 'gem "redis"', ""]))
    run(folder, "bundle", "exec", "rails", "assets:precompile")
    with Redis(environment) as redis:
        yield {"REDIS_URL": f"unix://{redis.address}"}


def use_rails(case, server):
    """Sends a message in the browser: the browser and clients of every process receive it."""

    async def listen(session):
        """Connects clients to every process; `hear` checks what they receive."""
        cables, processes = [], set()
        while len(processes) < PROCESSES:
            case.assertLess(len(cables), CLIENTS_MAX, processes)
            cable, process = await subscribe(session)
            cables.append(cable)
            processes.add(process)
        return cables

    async def subscribe(session):
        cable = await session.ws_connect(f"{server.url}/cable", protocols=["actioncable-v1-json"])
        await cable.send_json({"command": "subscribe", "identifier": ROOM})
        return cable, (await hear(cable))["process"]

    async def hear(cable):
        while True:
            message = await cable.receive_json(timeout=SECONDS)
            if "message" in message and message.get("type") is None:
                return message["message"]

    async def all_hear(browser):
        async with aiohttp.ClientSession(headers={"Origin": server.url}) as session:
            cables = await listen(session)
            await asyncio.to_thread(speak, browser)
            for cable in cables:
                case.assertEqual(await hear(cable), {"text": "Hello, room"})
                await cable.close()

    def speak(browser):
        browser.find("#text").type("Hello, room")
        browser.find("button").click()
        browser.wait_text("#heard li", "Hello, room")

    with Browser() as browser:
        browser.go(f"{server.url}/")
        browser.wait_text("#state", "connected")
        asyncio.run(asyncio.wait_for(all_hear(browser), SECONDS))


ROOM = json.dumps({"channel": "RoomChannel"})

DATABASE = """\
production:
  adapter: sqlite3
  database: {folder}/redmine.sqlite3
"""


@contextlib.contextmanager
def redmine(folder, environment):
    """Installs Redmine as its guide does, with SQLite; Debian has a directory an instance."""
    shutil.copytree(REDMINE, folder, symlinks=True, dirs_exist_ok=True)
    # Debian's links are relative to their original directory.
    for link in folder.joinpath("public").rglob("*"):
        if link.is_symlink():
            target = (REDMINE / link.relative_to(folder)).resolve()
            link.unlink()
            link.symlink_to(target)
    for name in ("Gemfile.lock", "instances", "config/database.yml"):
        (folder / name).unlink()
    instance = folder / "instances" / "default"
    for name in ("config", "tmp/cache", "log", "files"):
        (instance / name).mkdir(parents=True)
    (instance / "config" / "database.yml").write_text(DATABASE.format(folder=instance))
    (instance / "config" / "secret_key.txt").write_text("0123456789abcdef" * 8)
    (folder / "Gemfile.local").write_text('gem "sqlite3"\n')
    run(folder, "bundle", "exec", "rake", "db:migrate")
    run(folder, "bundle", "exec", "rake", "redmine:load_default_data", REDMINE_LANG="en")
    yield {}


def use_redmine(case, server):
    """Logs in, makes a project and finds it in the list."""
    with requests.Session() as session:

        def look(page):
            answer = session.get(urljoin(server.url, page), timeout=SECONDS)
            case.assertEqual(answer.status_code, 200, page)
            return answer

        def send(page, action, **fields):
            token = re.search(r'name="authenticity_token" value="([^"]+)"', look(page).text)[1]
            fields["authenticity_token"] = token
            address = urljoin(server.url, action)
            answer = session.post(address, fields, timeout=SECONDS)
            case.assertEqual(answer.status_code, 200, answer.text[:3000])
            return answer

        answer = send("/login", "/login", username="admin", password="admin")
        # The initial password must be changed first.
        case.assertTrue(answer.url.endswith("/my/password"), answer.url)
        words = {
            "password": "admin",
            "new_password": "b7-strong",
            "new_password_confirmation": "b7-strong",
        }
        send("/my/password", "/my/password", **words)
        project = {"project[name]": "Bridge", "project[identifier]": "bridge"}
        send("/projects/new", "/projects", **project)
        case.assertIn("Bridge", look("/projects").text)
        return look("/projects/bridge").text
