//! Logs files that the user of the server may not read, each once.
//!
//! Their clients get 403, or 404 where a folder would be listed. `file_tree` calls this for each such
//! request.

use penstock_exchange::{Fault, FaultKind};
use penstock_sys::account;

use crate::logged_names::LoggedNames;

/// Logs the fault of a name, if it is that the file or a folder above it may not be read, unless
/// the name was logged before or enough names were.
pub(crate) fn log_unreadable_file(log: &LoggedNames, name: &[u8], fault: &Fault) {
    if let Some(line) = line_once(log, name, fault, account::effective_ids().0) {
        log::warn!("{line}");
    }
}

fn line_once(log: &LoggedNames, name: &[u8], fault: &Fault, uid: u32) -> Option<String> {
    let is_due = fault.kind == FaultKind::Forbidden && log.insert(name);
    is_due.then(|| {
        format!(
            "files: cannot read {}: the server runs as user {uid}, which needs permission to read \
             the file and to enter its folders",
            fault.cause
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::logged_names::MAX_LOGGED_NAMES;

    #[test]
    fn each_file_is_logged_once_and_only_if_it_may_not_be_read() {
        let log = LoggedNames::default();
        let cause = "\"/srv/a.html\": Permission denied (os error 13)";
        let denied = Fault::new(FaultKind::Forbidden, cause);
        let full = Fault::new(FaultKind::Overloaded, "x");
        assert_eq!(line_once(&log, b"/a.html", &full, 33), None);
        let line = line_once(&log, b"/a.html", &denied, 33).unwrap();
        let expected = "files: cannot read \"/srv/a.html\": Permission denied (os error 13): the \
                        server runs as user 33";
        assert!(line.starts_with(expected), "{line}");
        assert_eq!(line_once(&log, b"/a.html", &denied, 33), None);
        let names = (0..100).map(|number| format!("/{number}"));
        let lines = names.filter_map(|name| line_once(&log, name.as_bytes(), &denied, 33));
        assert_eq!(lines.count(), MAX_LOGGED_NAMES - 1);
    }
}
