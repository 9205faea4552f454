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
use std::os::fd::OwnedFd;
use std::sync::OnceLock;

use libc::sock_filter;

use super::access::{OpenAccess, SCOPES};
use super::filter::{self, Guard, OF_THE_SYSTEM, Refusal, Rules};
use super::listener;

/// The walls around one program: which of them this kernel has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sandbox {
    has_domain: bool,
    has_filter: bool,
    has_reports: bool,
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

const REPORTS: MissingPart = MissingPart {
    name: "seccomp notifications (Linux 5.9)",
    allows: "system calls that an application is refused are not named in the log",
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
            _ => vec![DOMAIN, FILTER, REPORTS],
        }
    })
}

fn try_parts() -> Vec<MissingPart> {
    let mut missing = Vec::new();
    let entered = rustix::thread::set_no_new_privs(true).map_err(io::Error::from);
    let entered = entered.and_then(|()| OpenAccess::default().enter(SCOPES));
    missing.extend(entered.is_err().then_some(DOMAIN));
    // First the one with a listener: there is one listener at most.
    let reporting = match listener::is_supported() {
        true => filter::make(rules(&[], Refusal::Report)),
        false => None,
    };
    let listener = reporting.is_some_and(|filter| filter::install_reporting(&filter).is_ok());
    missing.extend(install_filter().is_err().then_some(FILTER));
    missing.extend((!listener).then_some(REPORTS));
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
            has_reports: !missing.contains(&REPORTS),
        }
    }

    /// The same in one byte, which is never 0.
    pub(crate) fn encode(self) -> u8 {
        let parts = [self.has_domain, self.has_filter, self.has_reports];
        let bits = parts.into_iter().zip(1..);
        bits.fold(1, |byte, (part, bit)| byte | u8::from(part) << bit)
    }

    /// What [`Sandbox::encode`] made of it; `None` of any other byte.
    pub(crate) fn decode(byte: u8) -> Option<Self> {
        let has = |bit: u8| byte & (1 << bit) != 0;
        (byte < 16 && has(0)).then_some(Self {
            has_domain: has(1),
            has_filter: has(2),
            has_reports: has(3),
        })
    }

    /// For good, for this thread and all that comes of it, within the limits of `access`. With a filter that reports
    /// ([`reporting_filter`]) and where the kernel has it, gives the filter's listener.
    ///
    /// # Errors
    /// What the kernel says.
    pub(crate) fn enter(
        self,
        access: &OpenAccess,
        reporting: Option<&[sock_filter]>,
    ) -> io::Result<Option<OwnedFd>> {
        rustix::thread::set_no_new_privs(true)?;
        access.enter(if self.has_domain { SCOPES } else { 0 })?;
        if let Some(filter) = reporting.filter(|_| self.has_filter && self.has_reports) {
            return filter::install_reporting(filter).map(Some);
        }
        if self.has_filter {
            install_filter()?;
        }
        Ok(None)
    }
}

fn rules(guards: &[Guard], refusal: Refusal) -> Rules<'_> {
    Rules {
        denied: &[OF_THE_SYSTEM],
        missing: &[],
        only_threads: false,
        guards,
        refusal,
    }
}

/// The filter of a sandbox whose refusals are reported, and that guards these processes too; `None` on a
/// processor without one.
pub(crate) fn reporting_filter(processes: &[u32]) -> Option<Vec<sock_filter>> {
    filter::make(rules(&listener::guards(processes), Refusal::Report))
}

fn install_filter() -> io::Result<()> {
    static FILTER: OnceLock<Option<Vec<sock_filter>>> = OnceLock::new();
    // Made by the thread that tries it, which comes before every child.
    match FILTER.get_or_init(|| filter::make(rules(&[], Refusal::Error))) {
        Some(filter) => filter::install(filter),
        None => Err(io::ErrorKind::Unsupported.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_told_in_one_byte() {
        for parts in 0..8 {
            let sandbox = Sandbox {
                has_domain: parts & 1 != 0,
                has_filter: parts & 2 != 0,
                has_reports: parts & 4 != 0,
            };
            assert_eq!(Sandbox::decode(sandbox.encode()), Some(sandbox));
        }
        for byte in [0, 2, 16, 17, 255] {
            assert_eq!(Sandbox::decode(byte), None, "{byte}");
        }
    }

    #[test]
    fn a_sandbox_holds_for_its_thread_alone() {
        let sandbox = Sandbox::available();
        let entered = std::thread::spawn(move || {
            sandbox.enter(&OpenAccess::default(), None).unwrap();
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
}
