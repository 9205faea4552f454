//! Opens files for serving without updating their access time, and classifies errors. `file_tree`
//! opens every file this way.
//!
//! # Invariants
//!
//! - A readable file is never refused because of its access time.
//! - An error that is not about the file's name never counts as "not servable".

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use penstock_sys::file::AccessTimePolicy;

/// Opens files with `O_NOATIME`, which saves a write to the inode, until it is refused: only a
/// file's owner may use it.
#[derive(Debug, Default)]
pub(super) struct NoAtimeOpener {
    is_refused: AtomicBool,
}

impl NoAtimeOpener {
    /// Opens a file, a second time if needed.
    pub(super) fn open<T>(
        &self,
        open: impl Fn(AccessTimePolicy) -> io::Result<T>,
    ) -> io::Result<T> {
        if self.is_refused.load(Ordering::Relaxed) {
            return open(AccessTimePolicy::Updated);
        }
        match open(AccessTimePolicy::Unchanged) {
            Err(error) if error.raw_os_error() == Some(EPERM) => {
                let opened = open(AccessTimePolicy::Updated)?;
                self.is_refused.store(true, Ordering::Relaxed);
                Ok(opened)
            }
            opened => opened,
        }
    }
}

/// Whether an error means that there is nothing to serve by that name: no such file, a file used as
/// a directory, a path that leaves the root, a link loop, a socket, a device without a driver.
pub(super) fn is_not_servable(error: &io::Error) -> bool {
    use io::ErrorKind::{CrossesDevices, InvalidFilename, InvalidInput, NotADirectory, NotFound};
    let kinds = [
        NotFound,
        NotADirectory,
        CrossesDevices,
        InvalidFilename,
        InvalidInput,
    ];
    kinds.contains(&error.kind())
        || error
            .raw_os_error()
            .is_some_and(|number| [ENXIO, ENODEV, ELOOP].contains(&number))
}

/// Whether the same call may succeed at once.
pub(super) fn is_retryable(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Whether descriptors or memory ran out.
pub(super) fn is_out_of_resources(error: &io::Error) -> bool {
    error
        .raw_os_error()
        .is_some_and(|number| [ENOMEM, ENFILE, EMFILE].contains(&number))
}

// Errors without a stable name in the standard library; numbers of Linux on x86-64 and AArch64.
const EPERM: i32 = 1;
const ENXIO: i32 = 6;
const ENOMEM: i32 = 12;
pub(super) const EACCES: i32 = 13;
const ENODEV: i32 = 19;
const ENFILE: i32 = 23;
const EMFILE: i32 = 24;
pub(super) const ELOOP: i32 = 40;

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use AccessTimePolicy::{Unchanged, Updated};

    #[test]
    fn the_time_of_access_is_left_alone_until_that_is_refused() {
        let unnoted = NoAtimeOpener::default();
        let asked = RefCell::new(Vec::new());
        // The results of both ways to open: an error number, 0 for success.
        let open = |kept: i32, noted: i32| {
            let opened = unnoted.open(|access_time| {
                asked.borrow_mut().push(access_time);
                match if access_time == Unchanged {
                    kept
                } else {
                    noted
                } {
                    0 => Ok(()),
                    number => Err(io::Error::from_raw_os_error(number)),
                }
            });
            let number = opened.err().and_then(|error| error.raw_os_error());
            (number.unwrap_or(0), asked.take())
        };
        assert_eq!(open(0, 0), (0, vec![Unchanged]));
        assert_eq!(open(EACCES, 0), (EACCES, vec![Unchanged]));
        assert_eq!(
            open(EPERM, EPERM),
            (EPERM, vec![Unchanged, Updated]),
            "for another reason"
        );
        assert_eq!(open(0, 0), (0, vec![Unchanged]));
        assert_eq!(open(EPERM, 0), (0, vec![Unchanged, Updated]));
        assert_eq!(open(EPERM, 0), (0, vec![Updated]), "remembered");
    }
}
