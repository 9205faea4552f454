//! What the process that speaks to the network gives up: starting programs, and power over other processes
//! and the kernel.
//!
//! Used by `penstock` once, before its second thread, when the launcher is there: programs are started by
//! that. A filter of system calls (`seccomp(2)`) is what the kernel then holds it to; threads inherit it.
//!
//! # Invariants
//!
//! - Calls that the filter does not look at are decided once per call number by the kernel (Linux 5.11), not
//!   by a program at each call: of those that are allowed only `clone` has arguments that count.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

/// Calls that no front end needs.
const FORBIDDEN: [libc::c_long; 33] = [
    // Other programs and processes.
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_process_madvise,
    libc::SYS_kcmp,
    libc::SYS_pidfd_getfd,
    // The file system's shape, and ways around its rights.
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_open_by_handle_at,
    libc::SYS_open_tree,
    libc::SYS_move_mount,
    libc::SYS_fsopen,
    libc::SYS_fsmount,
    libc::SYS_mount_setattr,
    libc::SYS_setns,
    libc::SYS_unshare,
    // The kernel.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    // Keys of the session.
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    // How the process is run.
    libc::SYS_personality,
];

/// Forbids this process, for good, to start programs or processes, to look into others and to change the
/// system. New threads stay allowed. Calls that are forbidden fail with `EPERM`.
///
/// # Errors
/// What the kernel says: it may have no filters (`ENOSYS`, `EINVAL`).
pub fn forbid_programs() -> io::Result<()> {
    let [errors, missing] = filters().map_err(io::Error::other)?;
    for filter in [errors, missing] {
        seccompiler::apply_filter(&filter).map_err(|error| match error {
            seccompiler::Error::Prctl(error) | seccompiler::Error::Seccomp(error) => error,
            error => io::Error::other(error),
        })?;
    }
    Ok(())
}

/// One filter for calls that fail, one for those that look as if they were not there.
fn filters() -> Result<[BpfProgram; 2], seccompiler::BackendError> {
    let is_process = SeccompRule::new(vec![SeccompCondition::new(
        0,
        SeccompCmpArgLen::Qword,
        SeccompCmpOp::MaskedEq(libc::CLONE_THREAD.unsigned_abs().into()),
        0,
    )?])?;
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = FORBIDDEN
        .into_iter()
        .map(|call| (call, Vec::new()))
        .collect();
    rules.insert(libc::SYS_clone, vec![is_process]);
    #[cfg(target_arch = "x86_64")]
    rules.extend([libc::SYS_fork, libc::SYS_vfork].map(|call| (call, Vec::new())));
    // Its arguments are in memory, which no filter sees; the C library then takes `clone`.
    let missing = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    Ok([
        program(rules, libc::EPERM)?,
        program(missing, libc::ENOSYS)?,
    ])
}

fn program(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    error: i32,
) -> Result<BpfProgram, seccompiler::BackendError> {
    let arch = TargetArch::try_from(std::env::consts::ARCH)?;
    let forbid = SeccompAction::Errno(error.unsigned_abs());
    SeccompFilter::new(rules, SeccompAction::Allow, forbid, arch)?.try_into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_confined_thread_starts_threads_and_no_program() {
        // A thread of its own: there is no way back.
        let confined = std::thread::spawn(|| {
            forbid_programs().unwrap();
            let thread = std::thread::spawn(|| std::process::Command::new("true").status());
            let started = thread.join().unwrap().unwrap_err();
            let us = rustix::process::getpid();
            #[expect(unsafe_code, reason = "no safe wrapper offers this call")]
            // SAFETY: numbers and no memory: nothing would be read.
            let read = unsafe {
                let (us, none) = (us.as_raw_nonzero().get(), std::ptr::null::<libc::iovec>());
                libc::process_vm_readv(us, none, 0, none, 0, 0)
            };
            let read = (read, io::Error::last_os_error());
            (started, read)
        });
        let (started, (read, error)) = confined.join().unwrap();
        assert_eq!(started.raw_os_error(), Some(libc::EPERM));
        assert_eq!((read, error.raw_os_error()), (-1, Some(libc::EPERM)));
        let free = std::process::Command::new("true").status().unwrap();
        assert!(free.success(), "others are as they were");
    }
}
