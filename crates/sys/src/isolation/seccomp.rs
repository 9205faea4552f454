//! Builds system call filters (`seccomp(2)`) from lists of calls, and installs them.
//!
//! The sandbox of applications and the confinement of the front end use it.
//!
//! # Invariants
//! - A call of another processor's interface (32 bits, x32) fails with ENOSYS, whatever its number.
//! - Allowed calls are decided without their arguments, which lets the kernel cache the result
//!   (Linux 5.11). Exceptions are `clone` where only threads may be created, and the few calls of a
//!   [`ArgumentGuard`]: signals, priorities and limits; before Linux 6.12 `fcntl` and `ioctl` as
//!   well.

use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use libc::sock_filter;
use libc::{BPF_ABS, BPF_JEQ, BPF_JGE, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W};

/// A system call: its name and its number.
pub(crate) type SystemCall = (&'static str, libc::c_long);

/// How a filter treats calls; all others are allowed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SeccompRules<'a> {
    /// Calls that fail with EPERM.
    pub(crate) denied: &'a [&'a [SystemCall]],
    /// Calls that fail with ENOSYS, as if the kernel did not have them.
    pub(crate) unsupported: &'a [SystemCall],
    /// `clone` creates threads and no processes.
    pub(crate) only_threads: bool,
    /// `prlimit64` sets no limits of a process given by id: any thread id works for its process,
    /// and a filter cannot know those.
    pub(crate) own_limits_only: bool,
    /// Calls that fail with EPERM depending on their arguments.
    pub(crate) guards: &'a [ArgumentGuard],
    pub(crate) refusal: RefusalMode,
}

/// Calls that are denied if an argument has one of some values. Arguments in memory are not seen.
#[derive(Debug, Clone)]
pub(crate) struct ArgumentGuard {
    pub(crate) calls: &'static [SystemCall],
    /// Argument indexes, and the lower halves of the values that are denied there.
    pub(crate) argument_checks: Vec<(u32, Vec<u32>)>,
    /// An argument and the value that it must have for the last of these checks to apply.
    pub(crate) last_check_condition: Option<(u32, u32)>,
}

/// How a refused call fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RefusalMode {
    /// With its error, at once, unreported.
    Error,
    /// With the error that the holder of the filter's listener replies; ENOSYS when it is closed.
    Report,
}

/// Calls denied to every application: they affect other processes, the kernel or the machine. Calls
/// reserved for root are listed for programs that run as root.
pub(crate) const DENIED_SYSTEM_CALLS: &[SystemCall] = &[
    // Other processes.
    ("ptrace", libc::SYS_ptrace),
    ("process_vm_readv", libc::SYS_process_vm_readv),
    ("process_vm_writev", libc::SYS_process_vm_writev),
    ("pidfd_getfd", libc::SYS_pidfd_getfd),
    ("kcmp", libc::SYS_kcmp),
    // Mounts.
    ("mount", libc::SYS_mount),
    ("umount2", libc::SYS_umount2),
    ("pivot_root", libc::SYS_pivot_root),
    ("move_mount", libc::SYS_move_mount),
    ("open_tree", libc::SYS_open_tree),
    ("fsopen", libc::SYS_fsopen),
    ("fsconfig", libc::SYS_fsconfig),
    ("fsmount", libc::SYS_fsmount),
    ("fspick", libc::SYS_fspick),
    ("mount_setattr", libc::SYS_mount_setattr),
    ("swapon", libc::SYS_swapon),
    ("swapoff", libc::SYS_swapoff),
    ("quotactl", libc::SYS_quotactl),
    // Opens files without a path, bypassing directory permissions.
    ("open_by_handle_at", libc::SYS_open_by_handle_at),
    // The kernel.
    ("reboot", libc::SYS_reboot),
    ("kexec_load", libc::SYS_kexec_load),
    #[cfg(target_arch = "x86_64")]
    ("kexec_file_load", libc::SYS_kexec_file_load),
    ("init_module", libc::SYS_init_module),
    ("finit_module", libc::SYS_finit_module),
    ("delete_module", libc::SYS_delete_module),
    ("bpf", libc::SYS_bpf),
    ("perf_event_open", libc::SYS_perf_event_open),
    ("userfaultfd", libc::SYS_userfaultfd),
    ("syslog", libc::SYS_syslog),
    ("acct", libc::SYS_acct),
    ("settimeofday", libc::SYS_settimeofday),
    ("clock_settime", libc::SYS_clock_settime),
    ("vhangup", libc::SYS_vhangup),
    #[cfg(target_arch = "x86_64")]
    ("iopl", libc::SYS_iopl),
    #[cfg(target_arch = "x86_64")]
    ("ioperm", libc::SYS_ioperm),
    // Keys, which belong to the user and not to the program.
    ("add_key", libc::SYS_add_key),
    ("request_key", libc::SYS_request_key),
    ("keyctl", libc::SYS_keyctl),
];

/// The kernel's id of this processor (`linux/audit.h`), which has its own call numbers.
#[cfg(target_arch = "x86_64")]
pub(super) const ARCHITECTURE: Option<u32> = Some(0xC000_003E);
#[cfg(target_arch = "aarch64")]
pub(super) const ARCHITECTURE: Option<u32> = Some(0xC000_00B7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(super) const ARCHITECTURE: Option<u32> = None;

/// Calls of the x32 interface have numbers from here on.
pub(super) const X32_CALL_BASE: u32 = 0x4000_0000;

/// Offsets in `struct seccomp_data`; of the first argument (each has 8 bytes) the lower half, on
/// little-endian processors.
pub(super) const NUMBER_OFFSET: u32 = 0;
pub(super) const ARCHITECTURE_OFFSET: u32 = 4;
pub(super) const ARGUMENT_OFFSET: u32 = 16;

/// Whether a call is one of this processor's own interface.
pub(crate) fn is_native_call(architecture: u32, number: u32) -> bool {
    ARCHITECTURE == Some(architecture) && number < X32_CALL_BASE
}

/// The filter as kernel instructions; `None` for a processor with unknown call numbers.
pub(crate) fn build(rules: SeccompRules<'_>) -> Option<Vec<sock_filter>> {
    ARCHITECTURE.map(|architecture| build_for(architecture, rules))
}

fn build_for(architecture: u32, rules: SeccompRules<'_>) -> Vec<sock_filter> {
    let fail = |error: i32| match rules.refusal {
        RefusalMode::Error => return_error(error),
        RefusalMode::Report => return_action(libc::SECCOMP_RET_USER_NOTIF),
    };
    let allow = return_action(libc::SECCOMP_RET_ALLOW);
    let mut filter = vec![
        load(ARCHITECTURE_OFFSET),
        branch(BPF_JEQ, architecture, 1, 0),
        fail(libc::ENOSYS),
        load(NUMBER_OFFSET),
        branch(BPF_JGE, X32_CALL_BASE, 0, 1),
        fail(libc::ENOSYS),
    ];
    for (_, number) in rules.denied.iter().copied().flatten() {
        filter.extend(match_call(*number, &[fail(libc::EPERM)]));
    }
    for (_, number) in rules.unsupported {
        filter.extend(match_call(*number, &[fail(libc::ENOSYS)]));
    }
    if rules.only_threads {
        let is_thread = [
            load(ARGUMENT_OFFSET),
            branch(BPF_JSET, libc::CLONE_THREAD.unsigned_abs(), 1, 0),
            fail(libc::EPERM),
            allow,
        ];
        filter.extend(match_call(libc::SYS_clone, &is_thread));
    }
    for guard in rules.guards {
        let mut checks = Vec::new();
        for (at, (argument, values)) in guard.argument_checks.iter().enumerate() {
            if let Some((argument, value)) = guard
                .last_check_condition
                .filter(|_| at + 1 == guard.argument_checks.len())
            {
                let is_other = [branch(BPF_JEQ, value, 1, 0), allow];
                checks.push(load(ARGUMENT_OFFSET + 8 * argument));
                checks.extend(is_other);
            }
            checks.push(load(ARGUMENT_OFFSET + 8 * argument));
            let denied = |value: &u32| [branch(BPF_JEQ, *value, 0, 1), fail(libc::EPERM)];
            checks.extend(values.iter().flat_map(denied));
        }
        checks.push(allow);
        for (_, number) in guard.calls {
            filter.extend(match_call(*number, &checks));
        }
    }
    if rules.own_limits_only {
        let sets_none = [
            load(ARGUMENT_OFFSET),
            branch(BPF_JEQ, 0, 4, 0),
            // Both halves of the pointer to the new limit.
            load(ARGUMENT_OFFSET + 16),
            branch(BPF_JEQ, 0, 0, 3),
            load(ARGUMENT_OFFSET + 20),
            branch(BPF_JEQ, 0, 0, 1),
            allow,
            fail(libc::EPERM),
        ];
        filter.extend(match_call(libc::SYS_prlimit64, &sets_none));
    }
    filter.push(allow);
    filter
}

/// The steps for one call, which return; after them the number of another call is still loaded.
pub(super) fn match_call(call: libc::c_long, steps: &[sock_filter]) -> Vec<sock_filter> {
    let call = u32::try_from(call).expect("numbers of calls are small");
    let length = u8::try_from(steps.len()).expect("jumps of a filter are short");
    let mut filter = vec![branch(BPF_JEQ, call, 0, length)];
    filter.extend(steps);
    filter
}

pub(super) fn load(at: u32) -> sock_filter {
    step(BPF_LD | BPF_W | BPF_ABS, at, 0, 0)
}

pub(super) fn return_action(result: u32) -> sock_filter {
    step(BPF_RET | BPF_K, result, 0, 0)
}

pub(super) fn return_error(error: i32) -> sock_filter {
    return_action(libc::SECCOMP_RET_ERRNO | error.unsigned_abs())
}

/// How many instructions to skip if the test succeeds, and if not.
pub(super) fn branch(test: u32, value: u32, jt: u8, jf: u8) -> sock_filter {
    step(BPF_JMP | BPF_K | test, value, jt, jf)
}

#[expect(clippy::cast_possible_truncation, reason = "codes are small")]
fn step(code: u32, k: u32, jt: u8, jf: u8) -> sock_filter {
    let code = code as u16;
    sock_filter { code, jt, jf, k }
}

/// Installs a filter for the calling thread, for good; threads and programs that it starts inherit
/// it. Needs `no_new_privs`. Allocates nothing.
pub(crate) fn install(filter: &[sock_filter]) -> io::Result<()> {
    install_with(filter, 0).map(|_| ())
}

/// The same with a filter that reports refusals ([`RefusalMode::Report`]): returns its listener.
///
/// # Errors
/// As [`install`]; `EBUSY` within a filter that has a listener, `EINVAL` before Linux 5.0.
pub(crate) fn install_with_listener(filter: &[sock_filter]) -> io::Result<OwnedFd> {
    let number = install_with(filter, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER)?;
    let number = RawFd::try_from(number).map_err(io::Error::other)?;
    #[expect(unsafe_code, reason = "the call gives a number")]
    // SAFETY: the kernel has just opened it for us, close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

fn install_with(filter: &[sock_filter], more: libc::c_ulong) -> io::Result<libc::c_long> {
    let program = libc::sock_fprog {
        len: libc::c_ushort::try_from(filter.len()).unwrap_or(0),
        filter: filter.as_ptr().cast_mut(),
    };
    // Before Linux 5.16 a filter without the flag slows the processor down (speculative store
    // bypass); before 4.17 there is no such flag.
    for flags in [libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW, 0] {
        #[expect(unsafe_code, reason = "no safe wrapper offers this call")]
        // SAFETY: the program and its instructions are alive and are only read.
        let done = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags | more,
                &raw const program,
            )
        };
        if done != -1 {
            return Ok(done);
        }
    }
    Err(io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of a filter, by an interpreter of the few instructions that are used.
    fn run(filter: &[sock_filter], architecture: u32, number: u32, arguments: [u32; 2]) -> u32 {
        let (mut at, mut value) = (0, 0);
        loop {
            let step = filter[at];
            at += 1;
            let is_so = match u32::from(step.code) {
                code if code == BPF_LD | BPF_W | BPF_ABS => {
                    value = match step.k {
                        NUMBER_OFFSET => number,
                        ARCHITECTURE_OFFSET => architecture,
                        ARGUMENT_OFFSET => arguments[0],
                        _ => arguments[1],
                    };
                    continue;
                }
                code if code == BPF_RET | BPF_K => return step.k,
                code if code == BPF_JMP | BPF_K | BPF_JEQ => value == step.k,
                code if code == BPF_JMP | BPF_K | BPF_JSET => value & step.k != 0,
                _ => value >= step.k,
            };
            at += usize::from(if is_so { step.jt } else { step.jf });
        }
    }

    #[test]
    fn each_call_gets_the_action_of_its_list() {
        let rules = SeccompRules {
            denied: &[DENIED_SYSTEM_CALLS, &[("execve", libc::SYS_execve)]],
            unsupported: &[("clone3", libc::SYS_clone3)],
            only_threads: true,
            own_limits_only: false,
            guards: &[],
            refusal: RefusalMode::Error,
        };
        let filter = build_for(7, rules);
        let (eperm, enosys) = (0x0005_0000 | 1, 0x0005_0000 | 38);
        let allow = libc::SECCOMP_RET_ALLOW;
        let ask = |number: libc::c_long, argument| {
            run(&filter, 7, u32::try_from(number).unwrap(), [argument, 0])
        };
        for (name, number) in DENIED_SYSTEM_CALLS
            .iter()
            .chain(&[("execve", libc::SYS_execve)])
        {
            assert_eq!(ask(*number, 0), eperm, "{name}");
        }
        assert_eq!(ask(libc::SYS_clone3, 0), enosys);
        let thread = libc::CLONE_THREAD.unsigned_abs() | libc::CLONE_VM.unsigned_abs();
        assert_eq!(ask(libc::SYS_clone, thread), allow);
        assert_eq!(ask(libc::SYS_clone, libc::CLONE_VM.unsigned_abs()), eperm);
        for number in [libc::SYS_read, libc::SYS_openat, libc::SYS_prctl] {
            assert_eq!(ask(number, 0), allow);
        }
        // Other interfaces, whatever the number.
        for number in [0, X32_CALL_BASE | 520, u32::MAX] {
            assert_eq!(run(&filter, 8, number, [0, 0]), enosys);
            let expected = if number == 0 { allow } else { enosys };
            assert_eq!(run(&filter, 7, number, [0, 0]), expected);
        }
        let all_processes = SeccompRules {
            only_threads: false,
            ..rules
        };
        let filter = build_for(7, all_processes);
        let clone = u32::try_from(libc::SYS_clone).unwrap();
        assert_eq!(run(&filter, 7, clone, [0, 0]), allow);
    }
    #[test]
    fn guarded_calls_are_denied_by_their_arguments_alone() {
        let guards = [
            ArgumentGuard {
                calls: &[("kill", libc::SYS_kill), ("tgkill", libc::SYS_tgkill)],
                last_check_condition: None,
                argument_checks: vec![(0, vec![70, 71, u32::MAX])],
            },
            ArgumentGuard {
                calls: &[("setpriority", libc::SYS_setpriority)],
                last_check_condition: None,
                argument_checks: vec![(0, vec![2]), (1, vec![70, 71])],
            },
        ];
        let rules = |refusal| SeccompRules {
            denied: &[DENIED_SYSTEM_CALLS],
            unsupported: &[],
            only_threads: false,
            own_limits_only: false,
            guards: &guards,
            refusal,
        };
        let allow = libc::SECCOMP_RET_ALLOW;
        for (refusal, refused) in [
            (RefusalMode::Error, 0x0005_0000 | 1),
            (RefusalMode::Report, libc::SECCOMP_RET_USER_NOTIF),
        ] {
            let filter = build_for(7, rules(refusal));
            let ask = |number: libc::c_long, arguments| {
                run(&filter, 7, u32::try_from(number).unwrap(), arguments)
            };
            for number in [libc::SYS_kill, libc::SYS_tgkill] {
                for (argument, expected) in [
                    (70, refused),
                    (71, refused),
                    (u32::MAX, refused),
                    (72, allow),
                    (0, allow),
                ] {
                    assert_eq!(ask(number, [argument, 70]), expected, "{number} {argument}");
                }
            }
            for (arguments, expected) in [
                ([2, 0], refused),
                ([0, 70], refused),
                ([1, 71], refused),
                ([0, 0], allow),
                ([0, 2], allow),
            ] {
                assert_eq!(
                    ask(libc::SYS_setpriority, arguments),
                    expected,
                    "{arguments:?}"
                );
            }
            assert_eq!(ask(libc::SYS_ptrace, [0, 0]), refused);
            assert_eq!(ask(libc::SYS_read, [70, 70]), allow);
        }
    }
}
