//! What a program that is started may not do to others: decided by the server, entered by the
//! child.
//!
//! Used where `process` starts programs. Three parts: no new privileges (set-user-ID programs gain
//! nothing), a Landlock domain of its own, and a seccomp filter of calls that no application needs.
//! All that the program starts or forks is within them, and nothing in there gets out.
//!
//! # Invariants
//! - A part that the kernel lacks is left off and named by [`missing`], never half entered.
//! - [`Sandbox::enter`] makes system calls and allocates nothing, once the parts were looked for.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::OnceLock;

use libc::{BPF_ABS, BPF_JEQ, BPF_JMP, BPF_K, BPF_LD, BPF_RET, BPF_W, sock_filter};

/// The walls around one program: which of them this kernel has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sandbox {
    has_domain: bool,
    has_filter: bool,
}

/// A part that this kernel, or a sandbox around us, does not have, and what an application may do
/// then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingPart {
    /// What it is.
    pub name: &'static str,
    /// What is not prevented without it.
    pub allows: &'static str,
}

const DOMAIN: MissingPart = MissingPart {
    name: "Landlock with scopes (Linux 6.12)",
    allows: "an application may signal, and read the memory of, other applications of its user",
};

const FILTER: MissingPart = MissingPart {
    name: "seccomp filters",
    allows: "an application may make system calls that it does not need, such as ptrace and bpf",
};

/// What is missing here. Tried once, by a thread that ends with it.
pub fn missing() -> &'static [MissingPart] {
    static MISSING: OnceLock<Vec<MissingPart>> = OnceLock::new();
    MISSING.get_or_init(|| {
        // Each holds for the thread alone that enters it.
        let tried = std::thread::Builder::new()
            .name("sandbox-probe".to_owned())
            .spawn(try_parts);
        let tried = tried.map(std::thread::JoinHandle::join);
        match tried {
            Ok(Ok(missing)) => missing,
            // Without a thread to try it with, nothing is entered that may fail.
            _ => vec![DOMAIN, FILTER],
        }
    })
}

fn try_parts() -> Vec<MissingPart> {
    let mut missing = Vec::new();
    let ruleset = make_ruleset();
    let entered = rustix::thread::set_no_new_privs(true).map_err(io::Error::from);
    let entered = entered.and_then(|()| restrict(ruleset?.as_raw_fd()));
    missing.extend(entered.is_err().then_some(DOMAIN));
    missing.extend(install_filter().is_err().then_some(FILTER));
    missing
}

impl Sandbox {
    /// Every part that this kernel has.
    #[must_use]
    pub fn available() -> Self {
        let missing = missing();
        Self {
            has_domain: !missing.contains(&DOMAIN),
            has_filter: !missing.contains(&FILTER),
        }
    }

    /// The same in one byte, which is never 0.
    pub(crate) fn encode(self) -> u8 {
        1 | u8::from(self.has_domain) << 1 | u8::from(self.has_filter) << 2
    }

    /// What [`Sandbox::encode`] made of it; `None` of any other byte.
    pub(crate) fn decode(byte: u8) -> Option<Self> {
        let has = |bit: u8| byte & (1 << bit) != 0;
        (byte < 8 && has(0)).then_some(Self {
            has_domain: has(1),
            has_filter: has(2),
        })
    }

    /// For good, for this thread and all that comes of it.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn enter(self) -> io::Result<()> {
        rustix::thread::set_no_new_privs(true)?;
        if self.has_domain {
            restrict(make_ruleset()?.as_raw_fd())?;
        }
        if self.has_filter {
            install_filter()?;
        }
        Ok(())
    }
}

/// `struct landlock_ruleset_attr` of the kernel since ABI 6 (Linux 6.12).
#[repr(C)]
struct RulesetAttributes {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

/// Abstract Unix sockets, and signals. The memory of processes outside (ptrace, `/proc/PID/mem`) is
/// denied by every domain.
const SCOPES: u64 = 1 | 2;

/// A ruleset that leaves files alone: one that handled any would forbid to rename across folders.
fn make_ruleset() -> io::Result<OwnedFd> {
    let attributes = RulesetAttributes {
        handled_access_fs: 0,
        handled_access_net: 0,
        scoped: SCOPES,
    };
    #[expect(unsafe_code, reason = "no safe wrapper offers this call")]
    // SAFETY: the attributes are alive for the call, and the size is theirs.
    let made = unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            &raw const attributes,
            size_of::<RulesetAttributes>(),
            0,
        )
    };
    let number = RawFd::try_from(made).map_err(io::Error::other)?;
    if number == -1 {
        return Err(io::Error::last_os_error());
    }
    #[expect(unsafe_code, reason = "the call gives a number")]
    // SAFETY: the kernel has just opened it for us, close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

fn restrict(ruleset: RawFd) -> io::Result<()> {
    #[expect(unsafe_code, reason = "no safe wrapper offers this call")]
    // SAFETY: numbers only.
    let done = unsafe { libc::syscall(libc::SYS_landlock_restrict_self, ruleset, 0) };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Calls that reach into other processes, the kernel or the machine. Those of root alone are there
/// for applications that run as root.
const DENIED: &[libc::c_long] = &[
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
    // Keys, which belong to the user and not to the application.
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

/// Where `struct seccomp_data` has them.
const NUMBER_AT: u32 = 0;
const ARCHITECTURE_AT: u32 = 4;

fn install_filter() -> io::Result<()> {
    static FILTER: OnceLock<Option<Vec<sock_filter>>> = OnceLock::new();
    // Made by the thread that tries it, which comes before every child.
    let filter = FILTER.get_or_init(|| ARCHITECTURE.map(make_filter));
    let Some(filter) = filter else {
        return Err(io::ErrorKind::Unsupported.into());
    };
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
            break;
        }
    }
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Denied calls fail with EPERM, those of another processor's interface with ENOSYS; every other is
/// allowed without a look at its arguments, which the kernel remembers (Linux 5.11).
#[expect(
    clippy::cast_possible_truncation,
    reason = "codes and numbers are small"
)]
fn make_filter(architecture: u32) -> Vec<sock_filter> {
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
    let count = DENIED.len();
    // Behind the calls: allow, deny, unknown.
    let mut filter = vec![
        load(ARCHITECTURE_AT),
        branch(BPF_JEQ, architecture, 0, count + 4),
        load(NUMBER_AT),
        branch(libc::BPF_JGE, X32, count + 2, 0),
    ];
    for (at, number) in DENIED.iter().enumerate() {
        filter.push(branch(BPF_JEQ, *number as u32, count - at, 0));
    }
    filter.extend([
        give(libc::SECCOMP_RET_ALLOW),
        fail(libc::EPERM),
        fail(libc::ENOSYS),
    ]);
    filter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_told_in_one_byte() {
        for (has_domain, has_filter) in [(false, false), (true, false), (false, true), (true, true)]
        {
            let sandbox = Sandbox {
                has_domain,
                has_filter,
            };
            assert_eq!(Sandbox::decode(sandbox.encode()), Some(sandbox));
        }
        for byte in [0, 2, 8, 9, 255] {
            assert_eq!(Sandbox::decode(byte), None, "{byte}");
        }
    }

    #[test]
    fn a_sandbox_holds_for_its_thread_alone() {
        let sandbox = Sandbox::available();
        let entered = std::thread::spawn(move || {
            sandbox.enter().unwrap();
            #[expect(unsafe_code, reason = "no safe wrapper offers this call")]
            // SAFETY: a path of nothing to nowhere; the call is denied before it is read.
            let done = unsafe { libc::syscall(libc::SYS_umount2, c"/nowhere".as_ptr(), 0) };
            (done, io::Error::last_os_error().raw_os_error())
        });
        let (done, error) = entered.join().unwrap();
        assert_eq!(done, -1);
        // Without a filter it is the path that is wrong, at least for root.
        assert!(
            !sandbox.has_filter || error == Some(libc::EPERM),
            "{error:?}"
        );
        assert!(!rustix::thread::no_new_privs().unwrap());
    }

    #[test]
    fn every_denied_call_and_no_other_leads_to_its_error() {
        let filter = make_filter(7);
        let run = |architecture: u32, number: u32| {
            let (mut at, mut loaded) = (0, 0);
            loop {
                let step = filter[at];
                at += 1;
                let code = u32::from(step.code);
                if code == BPF_LD | BPF_W | BPF_ABS {
                    loaded = if step.k == NUMBER_AT {
                        number
                    } else {
                        architecture
                    };
                } else if code == BPF_RET | BPF_K {
                    return step.k;
                } else {
                    let is_so = match code & 0xf0 {
                        BPF_JEQ => loaded == step.k,
                        _ => loaded >= step.k,
                    };
                    at += usize::from(if is_so { step.jt } else { step.jf });
                }
            }
        };
        let fails = |error: i32| libc::SECCOMP_RET_ERRNO | error.unsigned_abs();
        for number in 0..600_u32 {
            let is_denied = DENIED.contains(&libc::c_long::from(number));
            let expected = match is_denied {
                true => fails(libc::EPERM),
                false => libc::SECCOMP_RET_ALLOW,
            };
            assert_eq!(run(7, number), expected, "{number}");
            assert_eq!(run(8, number), fails(libc::ENOSYS), "{number}");
            assert_eq!(run(7, X32 | number), fails(libc::ENOSYS), "{number}");
        }
    }
}
