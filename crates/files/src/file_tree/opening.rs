//! How files are opened for serving: with their time of access left alone, and what the errors mean.
//!
//! `tree` opens every file this way. What must stay true: a file that may be read is never refused for the
//! sake of its time of access; an error that is no fact about the file's name is never taken for "not there".

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use penstock_sys::file::AccessTime;

/// Reading that leaves the time of access alone, which saves a write to the inode: until it is refused, as
/// to everybody but a file's owner.
#[derive(Debug, Default)]
pub(super) struct NoAtimeOpener {
    is_refused: AtomicBool,
}

impl NoAtimeOpener {
    /// Opens, a second time if need be.
    pub(super) fn open<T>(&self, open: impl Fn(AccessTime) -> io::Result<T>) -> io::Result<T> {
        if self.is_refused.load(Ordering::Relaxed) {
            return open(AccessTime::Updated);
        }
        match open(AccessTime::Unchanged) {
            Err(error) if error.raw_os_error() == Some(EPERM) => {
                let opened = open(AccessTime::Updated)?;
                self.is_refused.store(true, Ordering::Relaxed);
                Ok(opened)
            }
            opened => opened,
        }
    }
}

/// Whether an error of an open means that there is nothing to serve by that name: no such file, a
/// file as a folder, a way out of the root, a link in a circle, a socket, a device without a driver.
pub(super) fn is_missing(error: &io::Error) -> bool {
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
pub(super) fn is_transient(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}

/// Whether descriptors or memory ran out.
pub(super) fn is_exhausted(error: &io::Error) -> bool {
    error
        .raw_os_error()
        .is_some_and(|number| [ENOMEM, ENFILE, EMFILE].contains(&number))
}

// Errors that the standard library has no stable name for; numbers of Linux on x86-64 and AArch64.
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
    use AccessTime::{Unchanged, Updated};

    #[test]
    fn the_time_of_access_is_left_alone_until_that_is_refused() {
        let unnoted = NoAtimeOpener::default();
        let asked = RefCell::new(Vec::new());
        // What each way of opening comes to: a number of an error, 0 for none.
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
