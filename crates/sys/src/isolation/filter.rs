//! A filter of system calls (`seccomp(2)`), made of lists and installed.
//!
//! The sandbox of applications and the confinement of the front end are two of them.
//!
//! # Invariants
//! - A call of another processor's interface (32 bits, x32) fails with ENOSYS, whatever its number.
//! - Calls that a filter lets pass are decided without a look at their arguments, which the kernel
//!   remembers (Linux 5.11), but for `clone` where only threads may be made.

use std::io;

use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter};

/// What a filter does with calls; all others are allowed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Rules {
    /// Calls that fail with EPERM.
    pub(crate) denied: &'static [&'static [libc::c_long]],
    /// Calls that fail with ENOSYS, as if the kernel had them not.
    pub(crate) missing: &'static [libc::c_long],
    /// `clone` makes threads and no processes.
    pub(crate) only_threads: bool,
}

/// Calls that reach into other processes, the kernel or the machine. Those of root alone are there for
/// programs that run as root.
pub(crate) const OF_THE_SYSTEM: &[libc::c_long] = &[
    // Other processes.
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_kcmp,
    // Mounts.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_fsmount,
    libc::SYS_fspick,
    libc::SYS_mount_setattr,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_quotactl,
    // Files without a path, past every folder that is closed.
    libc::SYS_open_by_handle_at,
    // The kernel.
    libc::SYS_reboot,
    libc::SYS_kexec_load,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_kexec_file_load,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_syslog,
    libc::SYS_acct,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_vhangup,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_iopl,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_ioperm,
    // Keys, which belong to the user and not to the program.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
];

/// How the kernel calls this processor (`linux/audit.h`): the numbers of calls are its own.
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: Option<u32> = Some(0xC000_003E);
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: Option<u32> = Some(0xC000_00B7);
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
const ARCHITECTURE: Option<u32> = None;

/// Calls of the x32 interface have numbers from here on.
const X32: u32 = 0x4000_0000;

/// Where `struct seccomp_data` has them; of the first argument the lower half, on processors whose lower
/// half comes first.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;
const ARGUMENT_AT: u32 = 16;

/// The filter as the kernel's instructions; `None` for a processor whose numbers are not known here.
pub(crate) fn make(rules: Rules) -> Option<Vec<sock_filter>> {
    ARCHITECTURE.map(|architecture| make_for(architecture, rules))
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "codes and numbers are small"
)]
fn make_for(architecture: u32, rules: Rules) -> Vec<sock_filter> {
    let step = |code: u32, k: u32| sock_filter {
        code: code as u16,
        jt: 0,
        jf: 0,
        k,
    };
    // How many instructions to leave out if it is so, and if not.
    let branch = |code: u32, k: u32, jt: usize, jf: usize| sock_filter {
        code: (BPF_JMP | BPF_K | code) as u16,
        jt: jt as u8,
        jf: jf as u8,
        k,
    };
    let load = |at: u32| step(BPF_LD | BPF_W | BPF_ABS, at);
    let give = |result: u32| step(BPF_RET | BPF_K, result);
    let fail = |error: i32| give(libc::SECCOMP_RET_ERRNO | error.unsigned_abs());
    // Where a call leads to, behind the list: allow, deny, missing, look at an argument.
    const DENY: usize = 1;
    const MISSING: usize = 2;
    const LOOK: usize = 3;
    let denied = rules.denied.iter().copied().flatten();
    let denied = denied.map(|number| (*number, DENY));
    let missing = rules.missing.iter().map(|number| (*number, MISSING));
    let clone = rules.only_threads.then_some((libc::SYS_clone, LOOK));
    let calls: Vec<_> = denied.chain(missing).chain(clone).collect();
    let count = calls.len();
    let mut filter = vec![
        load(ARCHITECTURE_AT),
        branch(BPF_JEQ, architecture, 0, 2 + count + MISSING),
        load(NUMBER_AT),
        branch(libc::BPF_JGE, X32, count + MISSING, 0),
    ];
    for (at, (number, place)) in calls.into_iter().enumerate() {
        filter.push(branch(BPF_JEQ, number as u32, count - 1 - at + place, 0));
    }
    filter.extend([
        give(libc::SECCOMP_RET_ALLOW),
        fail(libc::EPERM),
        fail(libc::ENOSYS),
        load(ARGUMENT_AT),
        branch(BPF_JSET, libc::CLONE_THREAD.unsigned_abs(), 0, 1),
        give(libc::SECCOMP_RET_ALLOW),
        fail(libc::EPERM),
    ]);
    filter
}

/// Holds the calling thread to a filter, for good; and threads and programs that it starts. Needs
/// `no_new_privs`. Allocates nothing.
///
/// # Errors
/// What the kernel says: it may have no filters.
pub(crate) fn install(filter: &[sock_filter]) -> io::Result<()> {
    let program = libc::sock_fprog {
        len: libc::c_ushort::try_from(filter.len()).unwrap_or(0),
        filter: filter.as_ptr().cast_mut(),
    };
    // Before Linux 5.16 a filter without the flag slows the processor down (speculative store
    // bypass); before 4.17 there is no such flag.
    let mut done = -1;
    for flags in [libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW, 0] {
        #[expect(unsafe_code, reason = "no safe wrapper offers this call")]
        // SAFETY: the program and its instructions are alive and are only read.
        unsafe {
            done = libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                flags,
                &raw const program,
            );
        }
        if done == 0 {
            return Ok(());
        }
    }
    debug_assert_eq!(done, -1);
    Err(io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a filter gives, by a machine for the few instructions that are used.
    fn run(filter: &[sock_filter], architecture: u32, number: u32, argument: u32) -> u32 {
        let (mut at, mut value) = (0, 0);
        loop {
            let step = filter[at];
            at += 1;
            let is_so = match u32::from(step.code) {
                code if code == BPF_LD | BPF_W | BPF_ABS => {
                    value = match step.k {
                        NUMBER_AT => number,
                        ARCHITECTURE_AT => architecture,
                        _ => argument,
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
    fn each_call_leads_where_its_list_says() {
        let rules = Rules {
            denied: &[OF_THE_SYSTEM, &[libc::SYS_execve]],
            missing: &[libc::SYS_clone3],
            only_threads: true,
        };
        let filter = make_for(7, rules);
        let (eperm, enosys) = (0x0005_0000 | 1, 0x0005_0000 | 38);
        let allow = libc::SECCOMP_RET_ALLOW;
        let ask = |number: libc::c_long, argument| {
            run(&filter, 7, u32::try_from(number).unwrap(), argument)
        };
        for number in OF_THE_SYSTEM.iter().chain(&[libc::SYS_execve]) {
            assert_eq!(ask(*number, 0), eperm, "{number}");
        }
        assert_eq!(ask(libc::SYS_clone3, 0), enosys);
        let thread = libc::CLONE_THREAD.unsigned_abs() | libc::CLONE_VM.unsigned_abs();
        assert_eq!(ask(libc::SYS_clone, thread), allow);
        assert_eq!(ask(libc::SYS_clone, libc::CLONE_VM.unsigned_abs()), eperm);
        for number in [libc::SYS_read, libc::SYS_openat, libc::SYS_prctl] {
            assert_eq!(ask(number, 0), allow);
        }
        // Other interfaces, whatever the number.
        for number in [0, X32 | 520, u32::MAX] {
            assert_eq!(run(&filter, 8, number, 0), enosys);
            let expected = if number == 0 { allow } else { enosys };
            assert_eq!(run(&filter, 7, number, 0), expected);
        }
        let all_processes = Rules {
            only_threads: false,
            ..rules
        };
        let filter = make_for(7, all_processes);
        let clone = u32::try_from(libc::SYS_clone).unwrap();
        assert_eq!(run(&filter, 7, clone, 0), allow);
    }
}
