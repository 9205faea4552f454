//! Encoding of a launch order: which program to start, and how.
//!
//! Written by the server, read by the launcher, which is the same program. Pure.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use crate::isolation::{AccessRules, FileAccess, Sandbox};

/// Longest order: the kernel's limit on command line and environment is far below (`execve(2)`).
const MAX_BYTES: u64 = 16 << 20;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LaunchOrder {
    pub(super) program: OsString,
    pub(super) arg0: OsString,
    pub(super) args: Vec<OsString>,
    pub(super) dir: PathBuf,
    /// On top of the launcher's own.
    pub(super) env: Vec<(OsString, OsString)>,
    /// The number in the program of each descriptor that comes with the order.
    pub(super) fd_numbers: Vec<RawFd>,
    pub(super) lifetime: Lifetime,
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lifetime {
    /// It dies with the server.
    WithServer,
    /// It outlives the server.
    Independent,
}

impl LaunchOrder {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = OrderWriter(Vec::new());
        out.string(&self.program);
        out.string(&self.arg0);
        out.list(&self.args, |out, it| out.string(it));
        out.string(self.dir.as_os_str());
        out.list(&self.env, |out, (name, value)| {
            out.string(name);
            out.string(value);
        });
        out.list(&self.fd_numbers, |out, it| out.0.extend(it.to_le_bytes()));
        out.0.push(match self.lifetime {
            Lifetime::WithServer => 0,
            Lifetime::Independent => 1,
        });
        out.0.push(self.sandbox.map_or(0, Sandbox::encode));
        out.access(&self.access);
        for name in [&self.account, &self.group] {
            out.list(name.as_slice(), |out, it| out.string(it.as_ref()));
        }
        out.string(self.app.as_ref());
        out.0
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
        let mut input = OrderReader(bytes);
        let order = Self {
            program: input.string()?,
            arg0: input.string()?,
            args: input.list(OrderReader::string)?,
            dir: PathBuf::from(input.string()?),
            env: input.list(|input| Some((input.string()?, input.string()?)))?,
            fd_numbers: input.list(OrderReader::fd_number)?,
            lifetime: match input.array()? {
                [0] => Lifetime::WithServer,
                [1] => Lifetime::Independent,
                _ => return None,
            },
            sandbox: match input.array()? {
                [0] => None,
                [parts] => Some(Sandbox::decode(parts)?),
            },
            access: input.access()?,
            account: input.name()?,
            group: input.name()?,
            app: input.string()?.into_string().ok()?,
        };
        input.0.is_empty().then_some(order)
    }
}

struct OrderWriter(Vec<u8>);

impl OrderWriter {
    fn count(&mut self, count: usize) {
        // Longer than any order may be, and refused by its reader.
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        self.0.extend(count.to_le_bytes());
    }

    fn string(&mut self, text: &OsStr) {
        self.count(text.len());
        self.0.extend(text.as_bytes());
    }

    fn list<T>(&mut self, items: &[T], one: impl Fn(&mut Self, &T)) {
        self.count(items.len());
        items.iter().for_each(|it| one(self, it));
    }

    fn access(&mut self, access: &AccessRules) {
        self.list(access.files.as_slice(), |out, files| {
            for paths in [&files.read, &files.write] {
                out.list(paths, |out, path| out.string(path.as_os_str()));
            }
        });
        for ports in [&access.connect_ports, &access.bind_ports] {
            self.list(ports.as_slice(), |out, ports| {
                out.list(ports, |out, port| out.0.extend(port.to_le_bytes()));
            });
        }
    }
}

struct OrderReader<'a>(&'a [u8]);

impl OrderReader<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn count(&mut self) -> Option<usize> {
        usize::try_from(u32::from_le_bytes(self.array()?)).ok()
    }

    fn string(&mut self) -> Option<OsString> {
        let length = self.count()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(OsString::from_vec(text.to_vec()))
    }

    /// A name, or none; the outer `None` is an error.
    fn name(&mut self) -> Option<Option<String>> {
        match &mut self.list(OrderReader::string)?[..] {
            [] => Some(None),
            [name] => Some(Some(std::mem::take(name).into_string().ok()?)),
            _ => None,
        }
    }

    fn fd_number(&mut self) -> Option<RawFd> {
        let number = RawFd::from_le_bytes(self.array()?);
        (0..RawFd::MAX).contains(&number).then_some(number)
    }

    fn list<T>(&mut self, one: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let count = self.count()?;
        (0..count).map(|_| one(self)).collect()
    }

    fn option<T>(&mut self, one: impl Fn(&mut Self) -> Option<T>) -> Option<Option<T>> {
        let mut list = self.list(one)?;
        let last = list.pop();
        list.is_empty().then_some(last)
    }

    fn access(&mut self) -> Option<AccessRules> {
        let path = |input: &mut Self| input.string().map(PathBuf::from);
        let port = |input: &mut Self| input.array().map(u16::from_le_bytes);
        Some(AccessRules {
            files: self.option(|input| {
                Some(FileAccess {
                    read: input.list(path)?,
                    write: input.list(path)?,
                })
            })?,
            connect_ports: self.option(|input| input.list(port))?,
            bind_ports: self.option(|input| input.list(port))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order() -> LaunchOrder {
        LaunchOrder {
            program: "python3".into(),
            arg0: "python".into(),
            args: vec!["-c".into(), OsString::from_vec(vec![0xff, b'\n'])],
            dir: "/srv/shop".into(),
            env: vec![("A".into(), "b=c".into()), ("EMPTY".into(), "".into())],
            fd_numbers: vec![1, 2, 19_999],
            lifetime: Lifetime::Independent,
            sandbox: Sandbox::decode(5),
            access: AccessRules {
                files: Some(FileAccess {
                    read: vec!["/srv/shared".into()],
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
    fn malformed_orders_are_refused_without_allocating() {
        let bytes = order().encode();
        for length in 0..bytes.len() {
            assert_eq!(
                LaunchOrder::decode(&bytes[..length]),
                None,
                "{length} bytes"
            );
        }
        let mut more = bytes.clone();
        more.push(0);
        assert_eq!(LaunchOrder::decode(&more), None);
        // Lists and strings of 4 GiB that are not there.
        assert_eq!(LaunchOrder::decode(&[0xff; 64]), None);
        let mut without = order();
        (without.account, without.group) = (None, None);
        without.app = String::new();
        without.access = AccessRules::default();
        let good = without.encode();
        assert_eq!(LaunchOrder::decode(&good), Some(without));
        // The bytes before the empty lists and name are its lifetime and its sandbox.
        for (place, byte) in [(good.len() - 26, 7), (good.len() - 25, 2)] {
            let mut odd = good.clone();
            odd[place] = byte;
            assert_eq!(LaunchOrder::decode(&odd), None);
        }
    }
}
