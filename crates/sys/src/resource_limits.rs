//! What this process may have of a resource: `getrlimit`, also where a sandbox forbids its newer
//! form.
//!
//! Used by `process`, `identity`, `memory` and `pages`. rustix asks by `prlimit64` alone and panics
//! where that is refused, which units do that deny systemd's set `@resources`.

use std::io;

use rustix::process::{Resource, Rlimit};

/// The limits of `resource`; `None` in it is no limit.
///
/// # Errors
/// What `getrlimit` says: that a sandbox forbids to ask.
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
        read_by_older_call(resource, &mut both)?;
    }
    let number = |limit: u64| (limit != u64::MAX).then_some(limit);
    Ok(Rlimit {
        current: number(both[0]),
        maximum: number(both[1]),
    })
}

/// `getrlimit`, whose numbers have 64 bits where pointers have.
fn read_by_older_call(resource: Resource, both: &mut [u64; 2]) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_calls_say_the_same() {
        for resource in [Resource::Nofile, Resource::As, Resource::Nice] {
            let known = rustix::process::getrlimit(resource);
            let read = read_limit(resource).unwrap();
            assert_eq!((read.current, read.maximum), (known.current, known.maximum));
            let mut both = [0; 2];
            read_by_older_call(resource, &mut both).unwrap();
            assert_eq!(both[0], known.current.unwrap_or(u64::MAX));
        }
    }
}
