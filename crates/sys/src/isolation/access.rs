//! Files and TCP ports that a sandbox leaves accessible: rules of a Landlock domain.
//!
//! Set by `apps` for an application, entered with its [`Sandbox`](super::Sandbox). It needs only
//! three system calls, so they are made here instead of through a crate.
//!
//! # Invariants
//! - A resource without a limit is not handled: the kernel does not check it.
//! - A missing path grants no access, and does not keep a program from starting.
//! - A link on a path that is not a system path grants no access: any process that may write there
//!   could have created it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::{Component, Path, PathBuf};
use std::sync::OnceLock;

use libc::sock_filter;
use rustix::fs::{FileType, Mode, OFlags};
use serde::{Deserialize, Serialize};

use super::{MissingIsolation, port_filter, seccomp};

/// Resources that a program may use; `None` is no limit.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct AccessRules {
    /// Files and directories, besides those of the system.
    pub files: Option<FileAccess>,
    /// TCP ports that it may connect to.
    pub connect_ports: Option<Vec<u16>>,
    /// TCP ports that it may listen on.
    pub bind_ports: Option<Vec<u16>>,
}

/// Files and directories that a program may use.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct FileAccess {
    /// Those that it may read and execute. Absolute paths without links.
    #[serde(with = "any_paths")]
    pub read: Vec<PathBuf>,
    /// Those that it may write to, too. Absolute paths without links.
    #[serde(with = "any_paths")]
    pub write: Vec<PathBuf>,
}

/// Paths as bytes: `serde` alone refuses those that are not UTF-8.
mod any_paths {
    use std::ffi::{OsStr, OsString};
    use std::path::PathBuf;

    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(paths: &[PathBuf], to: S) -> Result<S::Ok, S::Error> {
        let paths: Vec<&OsStr> = paths.iter().map(|path| path.as_os_str()).collect();
        serde::Serialize::serialize(&paths, to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<Vec<PathBuf>, D::Error> {
        let paths = Vec::<OsString>::deserialize(from)?;
        Ok(paths.into_iter().map(PathBuf::from).collect())
    }
}

/// Paths that programs need to run at all: libraries, interpreters, names, time zones,
/// certificates. From `/etc` only world-readable files, and no directory of a program that may keep
/// secrets there. `/proc` is complete, as `/proc/self` is another directory for each process; the
/// domain protects private parts.
const SYSTEM: &[&str] = &[
    "/usr",
    "/bin",
    "/sbin",
    "/lib",
    "/lib32",
    "/lib64",
    "/libx32",
    "/nix/store",
    "/var/lib/ca-certificates",
    "/var/lib/gems",
    "/proc",
    "/sys/devices/system",
    "/sys/fs/cgroup",
    "/sys/kernel/mm/transparent_hugepage",
    "/run/systemd/resolve",
    "/dev/random",
    "/dev/urandom",
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/ca-certificates.conf",
    "/etc/crypto-policies",
    "/etc/fonts",
    "/etc/gai.conf",
    "/etc/group",
    "/etc/gss",
    "/etc/host.conf",
    "/etc/hostname",
    "/etc/hosts",
    "/etc/krb5.conf",
    "/etc/krb5.conf.d",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/ld.so.preload",
    "/etc/locale.alias",
    "/etc/locale.conf",
    "/etc/localtime",
    "/etc/machine-id",
    "/etc/magic",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/os-release",
    "/etc/passwd",
    "/etc/php",
    "/etc/pki/ca-trust",
    "/etc/pki/tls",
    "/etc/protocols",
    "/etc/resolv.conf",
    "/etc/services",
    "/etc/ssl",
    "/etc/terminfo",
    "/etc/timezone",
];

/// Directories of `/etc` with a version in their names: policies of ImageMagick, which limit what a
/// hostile picture may do, and settings of Python.
const VERSIONED: &[&str] = &["ImageMagick-", "python3"];

/// Those that exist.
fn versioned_folders() -> Vec<PathBuf> {
    let is_one = |name: &str| VERSIONED.iter().any(|start| name.starts_with(start));
    let entries = std::fs::read_dir("/etc").into_iter().flatten().flatten();
    let found = entries.filter(|entry| entry.file_name().to_str().is_some_and(is_one));
    found.map(|entry| entry.path()).collect()
}

/// World-writable devices.
const DEVICES: &[&str] = &["/dev/null", "/dev/zero", "/dev/full"];

/// File rights (`linux/landlock.h`): to execute, to write, to read.
const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIR: u64 = 1 << 3;
/// Creating character or block devices: never granted.
const MAKE_DEVICES: u64 = 1 << 6 | 1 << 11;
const TRUNCATE: u64 = 1 << 14;
/// Rights that apply to a file; all apply to a directory.
const OF_FILES: u64 = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE;
const READ: u64 = EXECUTE | READ_FILE | READ_DIR;

/// Port rights: to listen, to connect.
const BIND_TCP: u64 = 1;
const CONNECT_TCP: u64 = 1 << 1;

/// The first version of Landlock with ports (Linux 6.7).
const WITH_PORTS: i32 = 4;

/// Kinds of rules, and the flag that queries the version.
const RULE_PATH: libc::c_long = 1;
const RULE_PORT: libc::c_long = 2;
const ASK_VERSION: libc::c_long = 1;

/// Abstract Unix sockets, and signals (Linux 6.12). Every domain denies access to the memory of
/// outside processes (ptrace, `/proc/PID/mem`).
pub(super) const SCOPES: u64 = 1 | 2;

const FILES: MissingIsolation = MissingIsolation {
    name: "Landlock (Linux 5.13)",
    allows: "`read_paths` and `write_paths` of an application limit nothing",
};

const PORTS: MissingIsolation = MissingIsolation {
    name: "Landlock with ports (Linux 6.7)",
    allows: "`connect_ports` and `bind_ports` of an application limit nothing",
};

/// The version of Landlock's interface, 0 without it.
pub(super) fn version() -> i32 {
    static FOUND: OnceLock<i32> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let none = std::ptr::null::<Attributes>();
        #[expect(unsafe_code, reason = "no safe wrapper offers this call")]
        // SAFETY: without attributes the call returns a number.
        let found =
            unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0, ASK_VERSION) };
        i32::try_from(found).unwrap_or(0).max(0)
    })
}

/// Whether limits on files work here: an enclosing sandbox may report the version and forbid the
/// rules.
fn has_file_rules() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let root = open_system(Path::new("/")).map(|root| (root, READ_DIR));
        let files = Some(root.into_iter().collect());
        let ports = [None, None];
        version() > 0 && can_enter(OpenAccess::new(files, ports))
    })
}

/// Whether limits on ports work, as [`has_file_rules`].
fn has_port_rules() -> bool {
    static FOUND: OnceLock<bool> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let (files, ports) = (None, [Some(vec![1]), Some(vec![1])]);
        version() >= WITH_PORTS && can_enter(OpenAccess::new(files, ports))
    })
}

/// Tries it in a thread that ends afterwards. If the thread cannot be started nothing is known, and
/// a requested limit is tried when a program starts.
fn can_enter(access: OpenAccess) -> bool {
    let thread = std::thread::Builder::new().name("access-probe".to_owned());
    let tried = thread.spawn(move || {
        rustix::thread::set_no_new_privs(true)?;
        access.enter(0)
    });
    tried.map_or(true, |thread| {
        thread
            .join()
            .is_ok_and(|entered: io::Result<()>| entered.is_ok())
    })
}

/// `struct landlock_ruleset_attr` of the kernel since version 6. An older kernel accepts it if the
/// fields it does not know are zero.
#[repr(C)]
struct Attributes {
    files: u64,
    ports: u64,
    scopes: u64,
}

/// `struct landlock_path_beneath_attr`.
#[repr(C, packed)]
struct PathRule {
    rights: u64,
    folder: RawFd,
}

/// `struct landlock_net_port_attr`.
#[repr(C)]
struct PortRule {
    rights: u64,
    port: u64,
}

/// An [`Access`] with open paths, so that it can be entered without allocating.
#[derive(Debug, Default)]
pub(crate) struct OpenAccess {
    files: Option<Vec<(OwnedFd, u64)>>,
    ports: [Option<Vec<u16>>; 2],
    /// Closes the other ways to a port, if ports are limited.
    port_filter: Option<Vec<sock_filter>>,
}

impl AccessRules {
    /// The limits that this kernel, or an enclosing sandbox, does not support.
    pub fn missing(&self) -> Vec<MissingIsolation> {
        let has_ports = self.connect_ports.is_some() || self.bind_ports.is_some();
        let files = (self.files.is_some() && !has_file_rules()).then_some(FILES);
        let ports = (has_ports && !has_port_rules()).then_some(PORTS);
        files.into_iter().chain(ports).collect()
    }

    /// The limits that work here: without those that are [missing](Self::missing).
    #[must_use]
    pub fn available(self) -> Self {
        let ports = |ports: Option<Vec<u16>>| ports.filter(|_| has_port_rules());
        Self {
            files: self.files.filter(|_| has_file_rules()),
            connect_ports: ports(self.connect_ports),
            bind_ports: ports(self.bind_ports),
        }
    }

    /// Opens its files. Paths that are missing or not accessible to this user are left out.
    pub(crate) fn open(&self) -> OpenAccess {
        let files = self.files.as_ref().filter(|_| version() > 0).map(|files| {
            let handled = handled();
            let all = handled & !MAKE_DEVICES;
            let of_system = |paths: &'static [&str], rights| {
                let open = paths.iter().map(|path| open_system(Path::new(path)));
                open.map(move |file| (file, rights))
            };
            let own = |paths: &'_ [PathBuf], rights| {
                let open = paths.iter().map(|path| open_own(path));
                open.map(move |file| (file, rights)).collect::<Vec<_>>()
            };
            let versioned = versioned_folders();
            let versioned = versioned.iter().map(|path| (open_system(path), READ));
            let system = of_system(SYSTEM, READ).chain(of_system(DEVICES, all));
            let system = system.chain(versioned);
            let own = (own(&files.read, READ).into_iter()).chain(own(&files.write, all));
            let open = system.chain(own).filter_map(|(file, rights)| {
                let file = file.ok()?;
                let rights = rights_on(&file, rights & handled)?;
                Some((file, rights))
            });
            open.collect()
        });
        let ports = [&self.bind_ports, &self.connect_ports];
        let ports = ports.map(|ports| ports.clone().filter(|_| version() >= WITH_PORTS));
        OpenAccess::new(files, ports)
    }
}

/// All file rights that this kernel checks, except those on open devices.
fn handled() -> u64 {
    match version() {
        1 => (1 << 13) - 1,
        // Renaming and linking across directories; without it no process may where files are
        // handled.
        2 => (1 << 14) - 1,
        _ => (1 << 15) - 1,
    }
}

const OPEN: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

fn open_system(path: &Path) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(path, OPEN, Mode::empty())
}

/// Opens the path name by name, without following a link. `openat2` is missing in some sandboxes,
/// such as that of systemd's `RestrictSUIDSGID=`.
fn open_own(path: &Path) -> rustix::io::Result<OwnedFd> {
    if !path.is_absolute() {
        return Err(rustix::io::Errno::INVAL);
    }
    let mut at = open_system(Path::new("/"))?;
    for part in path.components() {
        match part {
            Component::RootDir => {}
            Component::Normal(name) => {
                at = rustix::fs::openat(&at, name, OPEN | OFlags::NOFOLLOW, Mode::empty())?;
            }
            _ => return Err(rustix::io::Errno::INVAL),
        }
    }
    Ok(at)
}

/// Which of these rights a rule on it may have; `None` for a link.
fn rights_on(file: &OwnedFd, rights: u64) -> Option<u64> {
    let about = rustix::fs::fstat(file).ok()?;
    match FileType::from_raw_mode(about.st_mode) {
        FileType::Symlink => None,
        FileType::Directory => Some(rights),
        _ => Some(rights & OF_FILES),
    }
}

impl OpenAccess {
    fn new(files: Option<Vec<(OwnedFd, u64)>>, ports: [Option<Vec<u16>>; 2]) -> Self {
        let has_ports = ports.iter().any(Option::is_some);
        let port_filter = has_ports.then(port_filter::make).flatten();
        Self {
            files,
            ports,
            port_filter,
        }
    }

    /// Creates a Landlock domain and enters it, for good. Everything without a limit stays
    /// accessible; `scopes` is closed in addition. Allocates nothing.
    pub(super) fn enter(&self, scopes: u64) -> io::Result<()> {
        let [bind, connect] = &self.ports;
        let rights = |ports: &Option<Vec<u16>>, right| ports.as_ref().map_or(0, |_| right);
        let attributes = Attributes {
            // A domain that handles any file right forbids renaming across directories without a
            // right to.
            files: self.files.as_ref().map_or(0, |_| handled()),
            ports: rights(bind, BIND_TCP) | rights(connect, CONNECT_TCP),
            scopes,
        };
        if attributes.files | attributes.ports | attributes.scopes == 0 {
            return Ok(());
        }
        let ruleset = make_ruleset(&attributes)?;
        for (file, rights) in self.files.iter().flatten() {
            let rule = PathRule {
                rights: *rights,
                folder: file.as_raw_fd(),
            };
            add_rule(&ruleset, RULE_PATH, (&raw const rule).cast())?;
        }
        for (ports, rights) in [(bind, BIND_TCP), (connect, CONNECT_TCP)] {
            for port in ports.iter().flatten() {
                let port = u64::from(*port);
                let rule = PortRule { rights, port };
                add_rule(&ruleset, RULE_PORT, (&raw const rule).cast())?;
            }
        }
        #[expect(unsafe_code, reason = "no safe wrapper offers this call")]
        // SAFETY: numbers only.
        checked(unsafe {
            libc::syscall(libc::SYS_landlock_restrict_self, ruleset.as_raw_fd(), 0)
        })?;
        self.port_filter.as_deref().map_or(Ok(()), seccomp::install)
    }
}

fn make_ruleset(attributes: &Attributes) -> io::Result<OwnedFd> {
    #[expect(unsafe_code, reason = "no safe wrapper offers this call")]
    // SAFETY: the attributes are alive for the call, and the size is theirs.
    let number = checked(unsafe {
        libc::syscall(
            libc::SYS_landlock_create_ruleset,
            std::ptr::from_ref(attributes),
            size_of::<Attributes>(),
            0,
        )
    })?;
    #[expect(unsafe_code, reason = "the call gives a number")]
    // SAFETY: the kernel has just opened it for us, close-on-exec.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

fn add_rule(ruleset: &OwnedFd, kind: libc::c_long, rule: *const libc::c_void) -> io::Result<()> {
    #[expect(unsafe_code, reason = "no safe wrapper offers this call")]
    // SAFETY: the rule is alive for the call, and of its kind.
    checked(unsafe {
        libc::syscall(
            libc::SYS_landlock_add_rule,
            ruleset.as_raw_fd(),
            kind,
            rule,
            0,
        )
    })
    .map(|_| ())
}

fn checked(done: libc::c_long) -> io::Result<RawFd> {
    match done {
        -1 => Err(io::Error::last_os_error()),
        done => RawFd::try_from(done).map_err(io::Error::other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::ErrorKind;
    use std::net::{TcpListener, TcpStream};

    /// Runs `act` within the limits, in a separate thread: entering is irreversible.
    fn within<T: Send + 'static>(
        access: AccessRules,
        act: impl FnOnce() -> T + Send + 'static,
    ) -> std::thread::Result<T> {
        let limited = std::thread::spawn(move || {
            rustix::thread::set_no_new_privs(true).unwrap();
            access.open().enter(0).unwrap();
            act()
        });
        limited.join()
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "files of a test")]
    fn only_named_files_are_within_reach() {
        if version() < 1 {
            return;
        }
        let folder = std::env::temp_dir().join(format!("penstock-access-{}", std::process::id()));
        for name in ["read", "write", "other"] {
            std::fs::create_dir_all(folder.join(name)).unwrap();
            std::fs::write(folder.join(name).join("file"), name).unwrap();
        }
        // The application may replace one of its own paths by this.
        std::os::unix::fs::symlink("../other", folder.join("write/link")).unwrap();
        let access = AccessRules {
            files: Some(FileAccess {
                read: ["read", "not-there", "write/link"]
                    .map(|it| folder.join(it))
                    .into(),
                write: ["write", "write/link", "write/link/file"]
                    .map(|it| folder.join(it))
                    .into(),
            }),
            ..AccessRules::default()
        };
        let at = folder.clone();
        within(access, move || {
            let denied = |result: io::Result<()>, what: &str| {
                let error = result.expect_err(what);
                assert_eq!(error.kind(), ErrorKind::PermissionDenied, "{what}");
            };
            let file = |name: &str| at.join(name).join("file");
            assert_eq!(std::fs::read(file("read")).unwrap(), b"read");
            denied(std::fs::write(file("read"), "x"), "write below read");
            std::fs::write(file("write"), "y").unwrap();
            std::fs::rename(file("write"), at.join("write/new")).unwrap();
            denied(std::fs::read(file("other")).map(|_| ()), "read another");
            denied(std::fs::write(at.join("new"), ""), "make a file");
            denied(std::fs::read_dir(&at).map(|_| ()), "list the folder above");
            // Needed by every program.
            std::fs::read("/proc/self/status").unwrap();
            std::fs::read("/etc/passwd").unwrap();
            std::fs::write("/dev/null", "x").unwrap();
            // Ports are unaffected.
            TcpListener::bind("127.0.0.1:0").unwrap();
        })
        .unwrap();
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn settings_that_protect_a_program_stay_open() {
        let versioned = versioned_folders();
        let is_open = |path: &&Path| {
            let in_list = SYSTEM.iter().any(|open| path.starts_with(open));
            in_list || versioned.iter().any(|open| path.starts_with(open))
        };
        let all = [
            "/etc/ImageMagick-6/policy.xml",
            "/etc/ImageMagick-7/policy.xml",
            "/etc/python3/debian_config",
            "/etc/php/8.2/cli/php.ini",
            "/etc/krb5.conf",
            "/etc/machine-id",
            "/var/lib/ca-certificates",
        ];
        for path in all.into_iter().map(Path::new).filter(|it| it.exists()) {
            assert!(is_open(&path), "{}", path.display());
        }
        for path in ["/etc", "/etc/shadow", "/etc/phpmyadmin", "/etc/sudoers"] {
            assert!(!is_open(&Path::new(path)), "{path}");
        }
    }

    #[test]
    fn only_named_ports_are_within_reach() {
        if version() < WITH_PORTS {
            return;
        }
        let listener = |_| TcpListener::bind("127.0.0.1:0").unwrap();
        let [open, closed] = [0, 1].map(listener);
        let addresses = [&open, &closed].map(|it| it.local_addr().unwrap());
        let access = AccessRules {
            connect_ports: Some(vec![addresses[0].port()]),
            bind_ports: Some(Vec::new()),
            ..AccessRules::default()
        };
        within(access, move || {
            TcpStream::connect(addresses[0]).unwrap();
            let denied = TcpStream::connect(addresses[1]).unwrap_err();
            assert_eq!(denied.kind(), ErrorKind::PermissionDenied);
            let denied = TcpListener::bind("127.0.0.1:0").unwrap_err();
            assert_eq!(denied.kind(), ErrorKind::PermissionDenied);
            // Files are unaffected.
            assert!(Path::new("/").read_dir().is_ok());
        })
        .unwrap();
    }

    #[test]
    fn what_has_no_limit_makes_no_domain() {
        within(AccessRules::default(), || ()).unwrap();
        assert!(AccessRules::default().missing().is_empty());
        let all = AccessRules {
            files: Some(FileAccess::default()),
            connect_ports: Some(Vec::new()),
            bind_ports: None,
        };
        let expected = usize::from(version() < 1) + usize::from(version() < WITH_PORTS);
        assert_eq!(all.missing().len(), expected);
    }
}
