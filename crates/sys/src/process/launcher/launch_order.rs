//! A launch order: which program to start, and how.
//!
//! Written by the server, read by the launcher, which is the same program. Pure.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;

use serde::{Deserialize, Serialize};

use crate::isolation::{AccessRules, Sandbox};

/// Longest order: a byte of a string takes up to four, and the kernel's limit on command line and
/// environment is 6 MiB (`execve(2)`).
const MAX_BYTES: u64 = 32 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LaunchOrder {
    pub(super) program: OsString,
    pub(super) arg0: OsString,
    pub(super) args: Vec<OsString>,
    pub(super) dir: OsString,
    /// On top of the launcher's own.
    pub(super) env: Vec<(OsString, OsString)>,
    /// The number in the program of each descriptor that comes with the order.
    pub(super) fd_numbers: Vec<RawFd>,
    pub(super) lifetime: ProcessLifetime,
    /// Its sandbox; `None` does not confine it.
    pub(super) sandbox: Option<Sandbox>,
    /// The limits of its sandbox.
    pub(super) access: AccessRules,
    /// The separate user that it runs as.
    pub(super) account: Option<String>,
    /// The cgroup that limits it.
    pub(super) group: Option<String>,
    /// Its application, for reports; empty for the next server.
    pub(super) app: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum ProcessLifetime {
    /// It dies with the server.
    WithServer,
    /// It outlives the server.
    Independent,
}

impl LaunchOrder {
    pub(super) fn encode(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("an order holds strings and numbers")
    }

    /// Reads an order from a file.
    ///
    /// # Errors
    /// `InvalidData` when it is not an order, or those of the file.
    pub(super) fn read(text: &File) -> io::Result<Self> {
        let length = text.metadata()?.len();
        let length = usize::try_from(length.min(MAX_BYTES)).map_err(io::Error::other)?;
        let mut bytes = vec![0; length];
        text.read_exact_at(&mut bytes, 0)?;
        Self::decode(&bytes).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "no order"))
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let order: Self = serde_json::from_slice(bytes).ok()?;
        let is_fd = |number: &RawFd| (0..RawFd::MAX).contains(number);
        order.fd_numbers.iter().all(is_fd).then_some(order)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt;

    use super::*;
    use crate::isolation::FileAccess;

    fn order() -> LaunchOrder {
        LaunchOrder {
            program: "python3".into(),
            arg0: "python".into(),
            args: vec!["-c".into(), OsString::from_vec(vec![0xff, b'\n'])],
            dir: "/srv/shop".into(),
            env: vec![("A".into(), "b=c".into()), ("EMPTY".into(), "".into())],
            fd_numbers: vec![1, 2, 19_999],
            lifetime: ProcessLifetime::Independent,
            sandbox: Some(Sandbox::available()),
            access: AccessRules {
                files: Some(FileAccess {
                    read: vec![
                        "/srv/shared".into(),
                        OsString::from_vec(vec![b'/', 0xff]).into(),
                    ],
                    write: Vec::new(),
                }),
                connect_ports: Some(vec![5432, 6379]),
                bind_ports: None,
            },
            account: Some("shop".to_owned()),
            group: Some("Shop".to_owned()),
            app: "web".to_owned(),
        }
    }

    #[test]
    fn orders_round_trip() {
        let order = order();
        assert_eq!(LaunchOrder::decode(&order.encode()), Some(order.clone()));
        let file = crate::file::memfd_with_content("order", &order.encode()).unwrap();
        assert_eq!(LaunchOrder::read(&File::from(file)).unwrap(), order);
    }

    #[test]
    fn malformed_orders_are_refused() {
        let bytes = order().encode();
        for length in 0..bytes.len() {
            assert_eq!(LaunchOrder::decode(&bytes[..length]), None, "{length}");
        }
        let text = String::from_utf8(bytes).unwrap();
        for (part, wrong) in [
            ("19999", "-1"),
            ("19999", "2147483647"),
            ("\"Independent\"", "\"Forever\""),
            ("\"app\":", "\"other\":"),
            ("{\"program\":", "{\"more\":1,\"program\":"),
        ] {
            assert!(text.contains(part), "{text}");
            let odd = text.replacen(part, wrong, 1);
            assert_eq!(LaunchOrder::decode(odd.as_bytes()), None, "{odd}");
        }
        assert_eq!(LaunchOrder::decode(&[0xff; 64]), None);
    }
}
