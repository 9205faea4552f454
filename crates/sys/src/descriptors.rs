//! How many descriptors this process may have, and how near it is to that.
//!
//! Used by `penstock` at start and by `edge` when it accepts a connection.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use rustix::process::Resource;

use crate::resource_limits::read_limit;

/// How many descriptors this process may have open now (the soft `RLIMIT_NOFILE`); `None` is no
/// limit, or one hidden by a sandbox.
#[must_use]
pub fn soft_limit() -> Option<u64> {
    read_limit(Resource::Nofile).ok()?.current
}

/// The number that the next descriptor will have. The kernel uses the lowest free one, so at least
/// as many are open. `any` is an open descriptor.
///
/// # Errors
/// When there is none left, for this process or the whole system.
pub fn next_fd_number(any: impl AsFd) -> io::Result<RawFd> {
    let copy = rustix::io::fcntl_dupfd_cloexec(any, 0)?;
    Ok(copy.as_raw_fd())
}

/// Whether an error says that no descriptor is left, for this process or the whole system.
pub fn is_fd_exhaustion(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE) | Some(libc::ENFILE)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_fd_number_is_the_lowest_free_one() {
        let (first, second) = io::pipe().unwrap();
        let number = next_fd_number(&first).unwrap();
        // Other tests open and close descriptors meanwhile: it is free, and within the limit.
        assert!(number >= 0 && number != first.as_raw_fd() && number != second.as_raw_fd());
        assert!(soft_limit().is_none_or(|limit| u64::try_from(number).unwrap() < limit));
    }

    #[test]
    fn exhaustion_errors_are_recognised() {
        for (number, expected) in [(24, true), (23, true), (11, false)] {
            let error = io::Error::from_raw_os_error(number);
            assert_eq!(is_fd_exhaustion(&error), expected, "{error}");
        }
    }
}
