"""Becomes a program in another root, as a container runtime starts one.

    unshare --mount --pid --fork --kill-child python3 contain.py ROOT PROGRAM ARGUMENT...

The root is read-only but for /tmp, has /proc and four devices, and the program has user 65532, no
capability and no way to gain one.
"""

import ctypes
import os
import subprocess
import sys

USER = 65532
PR_SET_NO_NEW_PRIVS = 38
PR_CAPBSET_DROP = 24
LAST_CAPABILITY = 40
DEVICES = ("null", "zero", "urandom", "random")


def mount(*words):
    subprocess.run(["mount", *words], check=True)


def lay_mounts(root):
    mount("--make-rprivate", "/")
    mount("--bind", root, root)
    mount("-t", "tmpfs", "-o", "mode=755,size=1m", "tmpfs", f"{root}/dev")
    for name in DEVICES:
        with open(f"{root}/dev/{name}", "w"):
            pass
        mount("--bind", f"/dev/{name}", f"{root}/dev/{name}")
    mount("-t", "tmpfs", "-o", "mode=1777,size=64m", "tmpfs", f"{root}/tmp")
    mount("-t", "proc", "proc", f"{root}/proc")
    mount("-o", "remount,bind,ro", root)


def give_up_rights():
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in range(LAST_CAPABILITY + 1):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)
    os.setgroups([])
    os.setresgid(USER, USER, USER)
    os.setresuid(USER, USER, USER)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        sys.exit("contain: no_new_privs is refused")


def main():
    root, *command = sys.argv[1:]
    lay_mounts(root)
    os.chroot(root)
    os.chdir("/srv")
    give_up_rights()
    os.execve(command[0], command, {"PATH": "/usr/bin:/bin"})


if __name__ == "__main__":
    main()
