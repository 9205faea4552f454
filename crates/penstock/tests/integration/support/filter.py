"""Runs a program as an older kernel or a stricter sandbox would: filter.py HOW PROGRAM ARGUMENT...

HOW is `old` (calls since Linux 5.1 answer ENOSYS, as Linux 4.19 does), `denied` (the same calls answer
EPERM, as filters of containers do; but clone3 ENOSYS, as those do that let programs have threads), or `strict` (EPERM for some older calls
besides, and for those of systemd's set @resources), or `hopeless` (no eventfd).
"""

import ctypes
import errno
import os
import platform
import struct
import sys

# The same number on every architecture (pidfd_send_signal); what is newer is above.
FIRST = 424
CLONE3 = 435
MACHINE = platform.machine()
# statx, preadv2, memfd_create, vmsplice, splice, sendfile, copy_file_range, renameat2, mincore
OLDER = {
    "x86_64": [332, 327, 319, 278, 275, 40, 326, 316, 27],
    "aarch64": [291, 286, 279, 75, 76, 71, 285, 276, 232],
}
# prlimit64, setrlimit, setpriority, ioprio_set, mbind, set_mempolicy, migrate_pages, move_pages;
# sched_setaffinity, sched_setscheduler, sched_setparam, sched_setattr
RESOURCES = {
    "x86_64": [302, 160, 141, 251, 237, 238, 256, 279, 203, 144, 142, 314],
    "aarch64": [261, 164, 140, 30, 235, 237, 238, 239, 122, 119, 118, 274],
}
EVENTFD2 = {"x86_64": [290], "aarch64": [19]}
LOAD, EQUAL, NOT_LESS, RETURN = 0x20, 0x15, 0x35, 0x06
ALLOW, ERRNO = 0x7FFF0000, 0x00050000
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2

how, program = sys.argv[1], sys.argv[2:]
answer = ERRNO | (errno.ENOSYS if how == "old" else errno.EPERM)
steps = [(LOAD, 0, 0, 0)]
if how != "old":
    steps += [(EQUAL, 0, 1, CLONE3), (RETURN, 0, 0, ERRNO | errno.ENOSYS)]
forbidden = {"strict": OLDER[MACHINE] + RESOURCES[MACHINE], "hopeless": EVENTFD2[MACHINE]}
for number in forbidden.get(how, []):
    steps += [(EQUAL, 0, 1, number), (RETURN, 0, 0, answer)]
steps += [(NOT_LESS, 0, 1, FIRST), (RETURN, 0, 0, answer), (RETURN, 0, 0, ALLOW)]
code = b"".join(struct.pack("HBBI", *step) for step in steps)
buffer = ctypes.create_string_buffer(code)


class Program(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


libc = ctypes.CDLL(None, use_errno=True)
filter_ = Program(len(steps), ctypes.addressof(buffer))
if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(
    PR_SET_SECCOMP, SECCOMP_MODE_FILTER, ctypes.byref(filter_)
):
    sys.exit(f"no filter: {os.strerror(ctypes.get_errno())}")
os.execv(program[0], program)
