//! How many descriptors this process may have, and how near it is to that.
//!
//! Asked by `penstock` at start and by `edge` when it accepts a connection.

use std::io;
use std::os::fd::{AsFd, AsRawFd, RawFd};

use rustix::process::Resource;

use crate::resource_limits::read_limit;

/// How many descriptors this process may have open now (the soft `RLIMIT_NOFILE`); `None` is no
/// limit, or one that a sandbox does not tell.
#[must_use]
pub fn limit() -> Option<u64> {
    read_limit(Resource::Nofile).ok()?.current
}

/// The number that the next descriptor will have. The kernel gives the lowest one that is free, so
/// at least as many are open. `any` is a descriptor that is open.
///
/// # Errors
/// When there is none left, for this process or the whole system.
pub fn next_number(any: impl AsFd) -> io::Result<RawFd> {
    let copy = rustix::io::fcntl_dupfd_cloexec(any, 0)?;
    Ok(copy.as_raw_fd())
}

/// Whether an error says that there is no descriptor left, for this process or the whole system.
#[must_use]
pub fn is_exhausted(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(libc::EMFILE) | Some(libc::ENFILE)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_number_is_that_of_a_descriptor_that_was_closed() {
        let (first, second) = io::pipe().unwrap();
        let number = next_number(&first).unwrap();
        // Other tests open and close descriptors meanwhile: it is free, and within the limit.
        assert!(number >= 0 && number != first.as_raw_fd() && number != second.as_raw_fd());
        assert!(limit().is_none_or(|limit| u64::try_from(number).unwrap() < limit));
    }

    #[test]
    fn what_the_kernel_says_without_a_descriptor_is_known() {
        for (number, expected) in [(24, true), (23, true), (11, false)] {
            let error = io::Error::from_raw_os_error(number);
            assert_eq!(is_exhausted(&error), expected, "{error}");
        }
    }
}
