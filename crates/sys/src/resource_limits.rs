//! Resource limits of this process: `getrlimit`, also where a sandbox forbids its newer form.
//!
//! rustix uses `prlimit64` alone and panics where that is refused, which units do that deny
//! systemd's set `@resources`. `peer_process` recognises processes that an application has left
//! behind by a limit.

use std::io;

use rustix::process::{Resource, Rlimit};

/// Returns the limits of `resource`; `None` in it is no limit.
pub(crate) fn read_limit(resource: Resource) -> io::Result<Rlimit> {
    // `struct rlimit64`: current, maximum.
    let mut both = [0_u64; 2];
    let (us, none) = (0, std::ptr::null::<u64>());
    #[expect(unsafe_code, reason = "rustix panics where the call is forbidden")]
    // SAFETY: numbers, no limits to set, and a pointer to as many bytes as the call writes.
    let done = unsafe {
        libc::syscall(
            libc::SYS_prlimit64,
            us,
            resource as libc::c_int,
            none,
            both.as_mut_ptr(),
        )
    };
    if done != 0 {
        read_by_getrlimit(resource, &mut both)?;
    }
    let number = |limit: u64| (limit != u64::MAX).then_some(limit);
    Ok(Rlimit {
        current: number(both[0]),
        maximum: number(both[1]),
    })
}

/// `getrlimit`: its numbers have 64 bits where pointers have.
fn read_by_getrlimit(resource: Resource, both: &mut [u64; 2]) -> io::Result<()> {
    let error = io::Error::last_os_error();
    if usize::BITS < 64 {
        return Err(error);
    }
    #[expect(unsafe_code, reason = "rustix has the newer call only")]
    // SAFETY: numbers, and a pointer to as many bytes as the call writes.
    let done = unsafe {
        libc::syscall(
            libc::SYS_getrlimit,
            resource as libc::c_int,
            both.as_mut_ptr(),
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// The mark of an application: its limit on file locks, which Linux has ignored since 2.4.25
/// (`RLIMIT_LOCKS`). Its descendants inherit it, and without the rights of root it cannot be
/// raised.
const MARK: u64 = 0x5045_4e53;

/// Marks this process, and its descendants, as part of an application: one below the server's own
/// limit, as the server may itself be started by an application.
pub(crate) fn mark_as_application() -> io::Result<()> {
    let own = read_limit(Resource::Locks)?.maximum;
    let mark = Some(own.map_or(MARK, |own| own.saturating_sub(1)));
    let marked = Rlimit {
        current: mark,
        maximum: mark,
    };
    Ok(rustix::process::setrlimit(Resource::Locks, marked)?)
}

/// Whether a process is part of an application, of any server.
pub(crate) fn is_marked_as_application(pid: u32) -> io::Result<bool> {
    // `None` is no limit.
    let number = |limit: Option<u64>| limit.unwrap_or(u64::MAX);
    let own = read_limit(Resource::Locks)?.maximum;
    Ok(number(max_locks(pid)?) < number(own))
}

/// The hard limit on locks of another process (proc_pid_limits(5)).
#[expect(clippy::disallowed_methods, reason = "/proc is memory, no disk")]
fn max_locks(pid: u32) -> io::Result<Option<u64>> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/limits"))?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("Max file locks"));
    let word = line.and_then(|line| line.split_ascii_whitespace().nth(1));
    match word {
        Some("unlimited") => Ok(None),
        Some(word) => word.parse().map(Some).map_err(io::Error::other),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_an_application_leaves_behind_keeps_its_mark() {
        use std::os::unix::process::CommandExt;
        use std::process::{Command, Stdio};
        assert!(!is_marked_as_application(std::process::id()).unwrap());
        let mut shell = Command::new("sh");
        // Its child, in another session, prints its pid.
        shell.args(["-c", "setsid sh -c 'echo $$; exec sleep 1000' & wait"]);
        #[expect(unsafe_code, reason = "as a program is started")]
        // SAFETY: system calls alone, in the forked child.
        unsafe {
            shell.pre_exec(mark_as_application);
        }
        let mut shell = shell.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        let mut output = io::BufReader::new(shell.stdout.take().unwrap());
        io::BufRead::read_line(&mut output, &mut line).unwrap();
        let left: u32 = line.trim().parse().unwrap();
        shell.kill().unwrap();
        shell.wait().unwrap();
        assert!(is_marked_as_application(left).unwrap());
        let pid = rustix::process::Pid::from_raw(left.cast_signed()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }

    #[test]
    fn prlimit_and_getrlimit_agree() {
        for resource in [Resource::Nofile, Resource::As, Resource::Nice] {
            let known = rustix::process::getrlimit(resource);
            let read = read_limit(resource).unwrap();
            assert_eq!((read.current, read.maximum), (known.current, known.maximum));
            let mut both = [0; 2];
            read_by_getrlimit(resource, &mut both).unwrap();
            assert_eq!(both[0], known.current.unwrap_or(u64::MAX));
        }
    }
}
