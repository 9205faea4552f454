//! The listener of a sandbox's seccomp filter: refused calls wait here for their error.
//!
//! Used by the launcher, which has the listener of each sandbox that it starts.
//!
//! # Invariants
//! - Every received call is answered with an error. None is ever continued: the memory that its
//!   arguments point to may change after a check.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::seccomp::{self, ArgumentGuard, SystemCall};

/// A call that waits for its reply.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SeccompNotification {
    id: u64,
    /// The calling thread, 0 if it is not visible to this process.
    pub(crate) thread: u32,
    /// Its number, unless it is a call of another processor's interface.
    pub(crate) call: Option<u32>,
    /// The lower halves of its first arguments.
    pub(crate) arguments: [u32; 3],
}

/// `SECCOMP_IOCTL_NOTIF_RECV`, `_SEND` and `_ID_VALID` (`linux/seccomp.h`).
const RECEIVE: u32 = request(3, size_of::<libc::seccomp_notif>(), 0);
const SEND: u32 = request(3, size_of::<libc::seccomp_notif_resp>(), 1);
const IS_VALID: u32 = request(1, size_of::<u64>(), 2);
/// `SECCOMP_IOCTL_NOTIF_ADDFD`.
const ADD_DESCRIPTOR: u32 = request(1, 24, 3);

/// An ioctl request as the kernel encodes it; direction 3 is both, 1 is writing.
#[expect(clippy::cast_possible_truncation, reason = "the size of a struct")]
const fn request(direction: u32, size: usize, number: u32) -> u32 {
    direction << 30 | (size as u32) << 16 | (b'!' as u32) << 8 | number
}

/// Whether the kernel has listeners with messages of the size that is known here.
pub(crate) fn is_supported() -> bool {
    let mut sizes = libc::seccomp_notif_sizes {
        seccomp_notif: 0,
        seccomp_notif_resp: 0,
        seccomp_data: 0,
    };
    #[expect(unsafe_code, reason = "no safe wrapper offers this call")]
    // SAFETY: the sizes are alive for the call, which writes them.
    let done = unsafe {
        let sizes = &raw mut sizes;
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_GET_NOTIF_SIZES, 0, sizes)
    };
    let fits = |size: u16, ours: usize| usize::from(size) <= ours;
    done == 0
        && fits(sizes.seccomp_notif, size_of::<libc::seccomp_notif>())
        && fits(
            sizes.seccomp_notif_resp,
            size_of::<libc::seccomp_notif_resp>(),
        )
}

/// Whether the kernel reports the end of the last process to a listener (Linux 5.9). Tested by
/// `ADDFD`, which came with it and checks the descriptor, here an invalid one.
pub(crate) fn can_report_end(listener: BorrowedFd<'_>) -> bool {
    // `struct seccomp_notif_addfd`: id (8 bytes), flags, descriptor, its new number and flags.
    let mut message = [0_u32, 0, 0, u32::MAX, 0, 0].map(u32::to_ne_bytes);
    let done = control(listener, ADD_DESCRIPTOR, message.as_mut_ptr().cast());
    done.is_err_and(|error| error.raw_os_error() == Some(libc::EBADF))
}

/// Receives the next call from a readable listener; `None` if its thread has ended or was
/// interrupted.
pub(crate) fn receive(listener: BorrowedFd<'_>) -> Option<SeccompNotification> {
    let mut message = std::mem::MaybeUninit::<libc::seccomp_notif>::zeroed();
    control(listener, RECEIVE, message.as_mut_ptr().cast()).ok()?;
    #[expect(unsafe_code, reason = "the kernel fills it")]
    // SAFETY: all of its fields are numbers, and it was zeroed before the kernel filled it.
    let message = unsafe { message.assume_init() };
    let data = message.data;
    let number = data.nr.cast_unsigned();
    let [first, second, third, ..] = data.args;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "process ids, of which the kernel takes the lower half too"
    )]
    Some(SeccompNotification {
        id: message.id,
        thread: message.pid,
        call: seccomp::is_native_call(data.arch, number).then_some(number),
        arguments: [first, second, third].map(|argument| argument as u32),
    })
}

/// Whether the call still waits, so that the thread id was not reused.
pub(crate) fn is_waiting(listener: BorrowedFd<'_>, call: &SeccompNotification) -> bool {
    let mut id = call.id;
    control(listener, IS_VALID, (&raw mut id).cast()).is_ok()
}

/// Fails the call: with ENOSYS if it is of another interface, else with EPERM.
pub(crate) fn refuse(listener: BorrowedFd<'_>, call: &SeccompNotification) {
    let error = match call.call {
        Some(_) => libc::EPERM,
        None => libc::ENOSYS,
    };
    let mut answer = libc::seccomp_notif_resp {
        id: call.id,
        val: 0,
        error: -error,
        flags: 0,
    };
    // A thread that has ended meanwhile needs no reply.
    let _ = control(listener, SEND, (&raw mut answer).cast());
}

fn control(listener: BorrowedFd<'_>, request: u32, message: *mut libc::c_void) -> io::Result<()> {
    #[expect(unsafe_code, reason = "no safe wrapper offers these calls")]
    #[allow(
        clippy::cast_lossless,
        clippy::cast_possible_wrap,
        reason = "the C library's type of a request: 64 bits in glibc, 32 with a sign in musl"
    )]
    // SAFETY: the message is alive, and as long as the kernel expects ([`is_supported`]) or the
    // request.
    let done = unsafe { libc::ioctl(listener.as_raw_fd(), request as libc::Ioctl, message) };
    match done {
        -1 => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

/// Calls that name a process by their first argument, and affect it.
const WITH_PROCESS: &[SystemCall] = &[
    ("kill", libc::SYS_kill),
    ("tkill", libc::SYS_tkill),
    ("tgkill", libc::SYS_tgkill),
    ("rt_sigqueueinfo", libc::SYS_rt_sigqueueinfo),
    ("rt_tgsigqueueinfo", libc::SYS_rt_tgsigqueueinfo),
    ("pidfd_open", libc::SYS_pidfd_open),
    ("sched_setaffinity", libc::SYS_sched_setaffinity),
    ("sched_setscheduler", libc::SYS_sched_setscheduler),
    ("sched_setparam", libc::SYS_sched_setparam),
    ("sched_setattr", libc::SYS_sched_setattr),
    ("migrate_pages", libc::SYS_migrate_pages),
    ("move_pages", libc::SYS_move_pages),
];
const WITH_LIMITS: &[SystemCall] = &[("prlimit64", libc::SYS_prlimit64)];
const WITH_PRIORITY: &[SystemCall] = &[("setpriority", libc::SYS_setpriority)];
const WITH_DISK_PRIORITY: &[SystemCall] = &[("ioprio_set", libc::SYS_ioprio_set)];

/// Signals by pidfd. Landlock's scopes deny them where available.
pub(crate) const PIDFD_SIGNAL_CALLS: &[SystemCall] =
    &[("pidfd_send_signal", libc::SYS_pidfd_send_signal)];
/// Calls that set which process gets the signals of a file.
const OF_FILES: &[SystemCall] = &[("fcntl", libc::SYS_fcntl)];
const OF_DEVICES: &[SystemCall] = &[("ioctl", libc::SYS_ioctl)];

/// The commands of `fcntl` and `ioctl` for that: with the pid as an argument, or in memory that a
/// filter does not see (`F_SETOWN_EX` in `asm-generic/fcntl.h`; `FIOSETOWN`, `SIOCSPGRP` in
/// `asm-generic/sockios.h`).
const SET_OWNER: u32 = libc::F_SETOWN.unsigned_abs();
const SET_OWNER_IN_MEMORY: u32 = 15;
const SET_OWNER_OF_DEVICE: [u32; 2] = [0x8901, 0x8902];

/// All processes that the caller may signal, as in `kill`.
pub(crate) const ALL_PROCESSES: u32 = u32::MAX;

/// "All processes of a user" (`linux/resource.h`, `linux/ioprio.h`).
const USER_PRIORITY: u32 = 2;
const USER_DISK_PRIORITY: u32 = 3;

/// Guards that refuse to send signals of files to these processes, for kernels without Landlock's
/// scopes. A program may still receive them itself.
pub(crate) fn file_signal_guards(processes: &[u32]) -> Vec<ArgumentGuard> {
    let groups = processes.iter().map(|pid| pid.wrapping_neg());
    vec![
        ArgumentGuard {
            calls: OF_FILES,
            last_check_condition: Some((1, SET_OWNER)),
            argument_checks: vec![
                (1, vec![SET_OWNER_IN_MEMORY]),
                (2, processes.iter().copied().chain(groups).collect()),
            ],
        },
        ArgumentGuard {
            calls: OF_DEVICES,
            last_check_condition: None,
            argument_checks: vec![(1, SET_OWNER_OF_DEVICE.to_vec())],
        },
    ]
}

/// Guards that refuse calls on one of these processes, or on all.
pub(crate) fn process_guards(processes: &[u32]) -> Vec<ArgumentGuard> {
    let groups = processes.iter().map(|pid| pid.wrapping_neg());
    let named = processes
        .iter()
        .copied()
        .chain(groups)
        .chain([ALL_PROCESSES]);
    let with_user = |user| vec![(0, vec![user]), (1, processes.to_vec())];
    vec![
        ArgumentGuard {
            calls: WITH_PROCESS,
            last_check_condition: None,
            argument_checks: vec![(0, named.collect())],
        },
        ArgumentGuard {
            calls: WITH_PRIORITY,
            last_check_condition: None,
            argument_checks: with_user(USER_PRIORITY),
        },
        ArgumentGuard {
            calls: WITH_DISK_PRIORITY,
            last_check_condition: None,
            argument_checks: with_user(USER_DISK_PRIORITY),
        },
    ]
}

/// The process that a guarded call affects, or [`ALL_PROCESSES`]; `None` for any other call.
pub(crate) fn target_process(call: u32, arguments: [u32; 3]) -> Option<u32> {
    let is_one = |calls: &[SystemCall]| {
        calls
            .iter()
            .any(|(_, number)| *number == libc::c_long::from(call))
    };
    if is_one(WITH_PROCESS) || is_one(WITH_LIMITS) {
        let process = arguments[0].cast_signed();
        return Some(match process {
            -1 => ALL_PROCESSES,
            _ => process.unsigned_abs(),
        });
    }
    if is_one(OF_FILES) && arguments[1] == SET_OWNER {
        return Some(arguments[2].cast_signed().unsigned_abs());
    }
    let user = match call {
        _ if is_one(WITH_PRIORITY) => USER_PRIORITY,
        _ if is_one(WITH_DISK_PRIORITY) => USER_DISK_PRIORITY,
        _ => return None,
    };
    Some(if arguments[0] == user {
        ALL_PROCESSES
    } else {
        arguments[1]
    })
}

/// The signal that a call sends; `None` if it sends none.
pub(crate) fn sent_signal(call: u32, arguments: [u32; 3]) -> Option<u32> {
    match call.into() {
        libc::SYS_kill | libc::SYS_tkill | libc::SYS_rt_sigqueueinfo => Some(arguments[1]),
        libc::SYS_tgkill | libc::SYS_rt_tgsigqueueinfo => Some(arguments[2]),
        _ => None,
    }
}

/// The name of a call that a sandbox refuses.
pub(crate) fn call_name(call: u32) -> Option<&'static str> {
    let lists = [
        seccomp::DENIED_SYSTEM_CALLS,
        WITH_PROCESS,
        WITH_LIMITS,
        WITH_PRIORITY,
        WITH_DISK_PRIORITY,
        PIDFD_SIGNAL_CALLS,
        OF_FILES,
        OF_DEVICES,
    ];
    let mut calls = lists.into_iter().flatten();
    let found = calls.find(|(_, number)| *number == libc::c_long::from(call));
    found.map(|(name, _)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guarded_calls_tell_whom_they_reach_for() {
        let number = |call: libc::c_long| u32::try_from(call).unwrap();
        let kill = number(libc::SYS_kill);
        for (arguments, process) in [
            ([70, 15, 0], 70),
            ([70_u32.wrapping_neg(), 9, 0], 70),
            ([u32::MAX, 9, 0], ALL_PROCESSES),
        ] {
            assert_eq!(target_process(kill, arguments), Some(process));
            assert_eq!(sent_signal(kill, arguments), Some(arguments[1]));
        }
        let setpriority = number(libc::SYS_setpriority);
        assert_eq!(target_process(setpriority, [0, 70, 19]), Some(70));
        assert_eq!(target_process(setpriority, [2, 0, 19]), Some(ALL_PROCESSES));
        let ptrace = number(libc::SYS_ptrace);
        assert_eq!(target_process(ptrace, [16, 70, 0]), None);
        assert_eq!(
            (call_name(ptrace), call_name(kill)),
            (Some("ptrace"), Some("kill"))
        );
        assert_eq!(call_name(number(libc::SYS_read)), None);
    }
}
