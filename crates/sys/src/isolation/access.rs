//! Files and TCP ports that a sandbox leaves accessible: rules of a Landlock domain.
//!
//! Set by `apps` for an application, entered with its [`Sandbox`](super::Sandbox).
//!
//! # Invariants
//! - A resource without a limit is not handled: the kernel does not check it.
//! - A missing path grants no access, and does not keep a program from starting.
//! - A link on a path that is not a system path grants no access: any process that may write there
//!   could have created it.

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Component, Path, PathBuf};
use std::sync::LazyLock;

use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, Errno, NetPort, PathBeneath, Ruleset, RulesetAttr,
    RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
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

/// All file rights that are limited, where the kernel knows them: all but those on open devices.
/// Without `Refer` no process may rename or link across directories where files are limited.
fn all() -> BitFlags<AccessFs> {
    AccessFs::from_all(ABI::V3)
}

const FILES: MissingIsolation = MissingIsolation {
    name: "Landlock (Linux 5.13)",
    allows: "`read_paths` and `write_paths` of an application limit nothing",
};

const PORTS: MissingIsolation = MissingIsolation {
    name: "Landlock with ports (Linux 6.7)",
    allows: "`connect_ports` and `bind_ports` of an application limit nothing",
};

/// Whether limits on files work here: an enclosing sandbox may forbid the rules.
static HAS_FILE_RULES: LazyLock<bool> = LazyLock::new(|| {
    let root = open_system(Path::new("/")).map(|root| (root, AccessFs::ReadDir.into()));
    can_enter(OpenedAccessRules::new(
        Some(root.into_iter().collect()),
        [None, None],
    ))
});

/// Whether limits on ports work.
static HAS_PORT_RULES: LazyLock<bool> =
    LazyLock::new(|| can_enter(OpenedAccessRules::new(None, [Some(vec![1]), Some(vec![1])])));

/// Tries it in a thread that ends afterwards. If the thread cannot be started nothing is known, and
/// a requested limit is tried when a program starts.
fn can_enter(access: OpenedAccessRules) -> bool {
    let thread = std::thread::Builder::new().name("access-probe".to_owned());
    let tried = thread.spawn(move || {
        rustix::thread::set_no_new_privs(true)?;
        access.enter_landlock_domain(BitFlags::EMPTY)
    });
    tried.map_or(true, |thread| {
        thread
            .join()
            .is_ok_and(|entered: io::Result<()>| entered.is_ok())
    })
}

/// [`AccessRules`] with open paths, so that they can be entered without allocating.
#[derive(Debug, Default)]
pub(crate) struct OpenedAccessRules {
    files: Option<Vec<(OwnedFd, BitFlags<AccessFs>)>>,
    ports: [Option<Vec<u16>>; 2],
    /// Closes the other ways to a port, if ports are limited.
    port_filter: Option<Vec<sock_filter>>,
}

impl AccessRules {
    /// The limits that this kernel, or an enclosing sandbox, does not support.
    pub fn missing(&self) -> Vec<MissingIsolation> {
        let has_ports = self.connect_ports.is_some() || self.bind_ports.is_some();
        let files = (self.files.is_some() && !*HAS_FILE_RULES).then_some(FILES);
        let ports = (has_ports && !*HAS_PORT_RULES).then_some(PORTS);
        files.into_iter().chain(ports).collect()
    }

    /// The limits that work here: without those that are [missing](Self::missing).
    #[must_use]
    pub fn available(self) -> Self {
        let ports = |ports: Option<Vec<u16>>| ports.filter(|_| *HAS_PORT_RULES);
        Self {
            files: self.files.filter(|_| *HAS_FILE_RULES),
            connect_ports: ports(self.connect_ports),
            bind_ports: ports(self.bind_ports),
        }
    }

    /// Opens its files. Paths that are missing or not accessible to this user are left out.
    pub(crate) fn open(&self) -> OpenedAccessRules {
        let files = self.files.as_ref().map(|files| {
            let read = AccessFs::from_read(ABI::V1);
            // Devices are not made.
            let write = all() & !(AccessFs::MakeChar | AccessFs::MakeBlock);
            let versioned = versioned_folders();
            let system = SYSTEM.iter().map(Path::new);
            let system = system.chain(versioned.iter().map(PathBuf::as_path));
            let system = system.map(|path| (open_system(path), read));
            let devices = DEVICES
                .iter()
                .map(|path| (open_system(Path::new(path)), write));
            let readable = files.read.iter().map(|path| (open_own(path), read));
            let writable = files.write.iter().map(|path| (open_own(path), write));
            let open = system.chain(devices).chain(readable).chain(writable);
            let open = open.filter_map(|(file, rights)| Some((file.ok()?, rights)));
            open.filter(|(file, _)| !is_link(file)).collect()
        });
        OpenedAccessRules::new(files, [self.bind_ports.clone(), self.connect_ports.clone()])
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

fn is_link(file: &OwnedFd) -> bool {
    rustix::fs::fstat(file).map_or(true, |about| {
        FileType::from_raw_mode(about.st_mode) == FileType::Symlink
    })
}

impl OpenedAccessRules {
    fn new(
        files: Option<Vec<(OwnedFd, BitFlags<AccessFs>)>>,
        ports: [Option<Vec<u16>>; 2],
    ) -> Self {
        let has_ports = ports.iter().any(Option::is_some);
        let port_filter = has_ports.then(port_filter::build_port_filter).flatten();
        Self {
            files,
            ports,
            port_filter,
        }
    }

    /// Creates a Landlock domain and enters it, for good. Everything without a limit stays
    /// accessible; `scopes` is closed in addition. Allocates nothing.
    pub(super) fn enter_landlock_domain(&self, scopes: BitFlags<Scope>) -> io::Result<()> {
        if self.files.is_some() || self.ports.iter().any(Option::is_some) || !scopes.is_empty() {
            match self.enter_domain(scopes) {
                Ok(RulesetStatus::NotEnforced) => return Err(io::ErrorKind::Unsupported.into()),
                Ok(_) => {}
                Err(error) => return Err(io::Error::from_raw_os_error(*Errno::from(error))),
            }
        }
        self.port_filter.as_deref().map_or(Ok(()), seccomp::install)
    }

    fn enter_domain(&self, scopes: BitFlags<Scope>) -> Result<RulesetStatus, RulesetError> {
        let rights = [AccessNet::BindTcp, AccessNet::ConnectTcp];
        let ports = || self.ports.iter().zip(rights);
        let mut rules = Ruleset::default();
        if self.files.is_some() {
            rules = rules.handle_access(all())?;
        }
        for (_, right) in ports().filter(|(ports, _)| ports.is_some()) {
            rules = rules.handle_access(right)?;
        }
        if !scopes.is_empty() {
            rules = rules.scope(scopes)?;
        }
        let mut rules = rules.create()?;
        for (file, rights) in self.files.iter().flatten() {
            rules = rules.add_rule(PathBeneath::new(file, *rights))?;
        }
        for (ports, right) in ports() {
            for port in ports.iter().flatten() {
                rules = rules.add_rule(NetPort::new(*port, right))?;
            }
        }
        Ok(rules.restrict_self()?.ruleset)
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
            access
                .open()
                .enter_landlock_domain(BitFlags::EMPTY)
                .unwrap();
            act()
        });
        limited.join()
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "files of a test")]
    fn only_named_files_are_within_reach() {
        if !*HAS_FILE_RULES {
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
        if !*HAS_PORT_RULES {
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
        assert!(all.available().missing().is_empty());
    }
}
