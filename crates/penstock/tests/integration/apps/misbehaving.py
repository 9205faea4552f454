"""The application of the tests in `processes`: each path causes one kind of damage, as WSGI and as ASGI.

The file `boot` names the failure while it is loaded. Processes left behind end by themselves after
`LIFE` seconds, so that a test that fails leaves nothing.
"""

import atexit
import os
import resource
import signal
import sys
import threading
from time import process_time, sleep as pause

LIFE = 60
LEAKED = []


def note(name, line=None):
    """Adds a line to a file: by default the process id."""
    with open(os.path.join(FOLDER, name), "a") as file:
        file.write(f"{os.getpid() if line is None else line}\n")


def wait_for(name):
    # Looks seldom: on a busy machine a thread that polls seems to compute.
    while not os.path.exists(os.path.join(FOLDER, name)):
        pause(0.05)


def linger():
    """Waits to be killed."""
    signal.alarm(LIFE)
    while True:
        pause(LIFE)


def fork(child):
    pid = os.fork()
    if pid == 0:
        try:
            child()
        finally:
            os._exit(0)
    return pid


# Damage in a request.


def pid(_query):
    return os.getpid()


def hold(name):
    note("begun")
    wait_for(name)
    return os.getpid()


def leave(_query):
    os._exit(0)


def exit(_query):
    sys.exit(0)


def stuck(_query):
    note("begun")
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def deaf(_query):
    note("begun")
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    while True:
        signal.sigwait([signal.SIGRTMAX])


def garbage(_query):
    """Garbage to every descriptor but the standard ones."""
    for number in range(3, 1024):
        try:
            os.set_blocking(number, False)
            os.write(number, bytes(range(255, 0, -1)))
        except OSError:
            pass
    return os.getpid()


def flood(query):
    """Garbage without a line end, then lines, to standard output and standard error."""
    rubbish = b"\x00\xff\x1b[2J\r" + b"x" * 65000
    for _ in range(int(query)):
        os.write(1, rubbish)
        os.write(2, rubbish)
    for number in range(int(query) * 100):
        os.write(2, b"line %d\n" % number)
    os.write(2, b"the flood is over\n")
    return os.getpid()


def descriptors(_query):
    """Opens as many descriptors as possible, and keeps them."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
    with open("leaked", "a") as file:
        try:
            while True:
                LEAKED.append(os.open("/dev/null", os.O_RDONLY))
        except OSError as error:
            file.write(f"{error.strerror}\n")
    # The descriptor of that file is used too.
    LEAKED.append(os.open("/dev/null", os.O_RDONLY))
    return os.getpid()


def leak(query):
    LEAKED.append(bytearray(b"x") * (int(query) << 20))
    return os.getpid()


def oom(_query):
    """Allocates all the memory that it may have, which is little more than it has."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20),) * 2)
    hoard = []
    while True:
        hoard.append(bytearray(1 << 20))


def burn(_query):
    """Computes for 20 ms."""
    end = process_time() + 0.02
    while process_time() < end:
        pass
    return os.getpid()


def length(_query):
    return "the body has come"


def version(_query):
    return os.environ.get("VERSION", "")


def umask(_query):
    """Changes its working directory and its umask."""
    os.chdir("/")
    os.umask(0o777)
    return os.getpid()


def user(_query):
    """Becomes another user, who can read nothing."""
    os.setgid(65534)
    os.setuid(65534)
    return os.getpid()


def close(_query):
    os.closerange(3, 1024)
    return os.getpid()


def tree(depth, is_leader):
    """A process that forks two that do the same, `depth` times."""
    if is_leader:
        os.setsid()
    signal.alarm(LIFE)
    note("children")
    for _ in range(2 if depth else 0):
        fork(lambda: tree(depth - 1, is_leader))
    linger()


def comet():
    """Forks and ends, again and again, always under another number."""
    for _ in range(20000):
        if os.fork():
            os._exit(0)
        os.setsid()
        pause(0.002)


def bomb(_query):
    """Some 300 processes that fork on: in the worker's group, and each in a session of its own."""
    for is_leader in (False, True):
        fork(lambda: tree(6, is_leader))
        fork(lambda: tree(3, is_leader))
    fork(comet)
    return os.getpid()


def double():
    os.setsid()
    fork(lambda: (note("children"), linger()))


def children(_query):
    """One in its group, one in another session, one orphan, one program."""
    fork(lambda: (note("children"), linger()))
    fork(lambda: (os.setsid(), note("children"), linger()))
    os.waitpid(fork(double), 0)
    note("children", os.spawnlp(os.P_NOWAIT, "sleep", "sleep", str(LIFE)))
    return os.getpid()


def parent(query):
    """Signals to the server: by itself, by a program, by an orphan. The senders stay until the signals
    were handled, as a sender that is gone cannot be identified."""
    number = getattr(signal, query)
    server = os.getppid()
    os.kill(server, number)
    wait = "while [ ! -e heard ]; do sleep 0.05; done"
    script = f"sleep 1.2; kill -{int(number)} {server}; {wait}"
    os.spawnlp(os.P_NOWAIT, "timeout", "timeout", str(LIFE), "sh", "-c", script)

    def stranger():
        os.setsid()
        fork(lambda: (pause(2.4), os.kill(server, number), note("told"), wait_for("heard")))

    os.waitpid(fork(stranger), 0)
    return server


ACTS = {
    act.__name__: act
    for act in (
        pid, version, burn, oom, hold, leave, exit, stuck, deaf, garbage, flood, descriptors, leak, length, umask, user,
        close, bomb, children, parent,
    )
}


def act(path, query):
    name, _, rest = path.strip("/").partition("/")
    return str(ACTS.get(name, pid)(query or rest)).encode()


def app(environ, start):
    environ["wsgi.input"].read()
    body = act(environ["PATH_INFO"], environ["QUERY_STRING"])
    start("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(body)))])
    return [body]


async def wait_for_ever():
    import asyncio

    note("begun")
    await asyncio.Event().wait()


async def tasks(scope, receive, send):
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])
    while (await receive()).get("more_body"):
        pass
    path, query = scope["path"], scope["query_string"].decode()
    if path == "/hold":
        import asyncio

        note("begun")
        while not os.path.exists(os.path.join(FOLDER, query)):
            await asyncio.sleep(0.003)
        path = "/"
    if path == "/wait":
        await wait_for_ever()
    body = act(path, query)
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


# Failures while it is loaded.


def crash():
    raise RuntimeError("no such table: customers")


def hang():
    note("booting")
    threading.Event().wait()


def slow():
    note("booting")
    wait_for("go")


def exit_0():
    os._exit(0)


def no_forks():
    """It cannot fork, as the user may have no more processes."""
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    resource.setrlimit(resource.RLIMIT_NPROC, (1, 1))


def hang_at_exit():
    atexit.register(lambda: (note("ending"), threading.Event().wait(LIFE)))


def no_signals():
    """Ignores SIGCHLD and SIGTERM."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def kill_parent():
    for number in (signal.SIGTERM, signal.SIGHUP):
        os.kill(os.getppid(), number)


def leave_children():
    children("")


FOLDER = os.getcwd()
try:
    with open("boot") as _file:
        _wish = _file.read().strip()
except FileNotFoundError:
    _wish = ""
note("boots")
note("priorities", os.getpriority(os.PRIO_PROCESS, 0))
if _wish:
    globals()[_wish]()
