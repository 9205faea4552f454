//! Puts the root of the local authority into the stores of the system and of browsers, and takes it
//! out: `penstock trust`.
//!
//! The system's store takes a file in a folder and a program that reads it, as root. Chromium and
//! Firefox have databases of their own per user and profile, which `certutil` of NSS changes.
//!
//! The caller runs the programs and shows the steps. A failure stops nothing: each store is of use
//! alone.

use std::ffi::{OsStr, OsString};
use std::io;
use std::path::{Path, PathBuf};

use super::LocalAuthority;

#[cfg(test)]
mod tests;

/// Runs programs and shows steps, for `install` and `remove`.
pub trait TrustRunner {
    /// Runs a program to its end, within a time of the caller's. The error is of the kind
    /// `NotFound` if it is not installed, and has what the program printed if it failed.
    fn run(&mut self, program: &str, arguments: &[&OsStr]) -> io::Result<()>;

    /// Shows a step that has ended.
    fn report(&mut self, step: &TrustStep<'_>);
}

/// One store, and what became of it.
#[derive(Debug)]
pub struct TrustStep<'a> {
    /// The folder of the store.
    pub store: &'a Path,
    /// Whether it is changed.
    pub result: Result<(), TrustError>,
}

/// Why a store is not changed.
#[derive(Debug, thiserror::Error)]
pub enum TrustError {
    /// The folder is not this user's.
    #[error("only root may change it: run the command again with sudo")]
    NeedsRoot,
    /// A file cannot be written or removed.
    #[error("{}: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why not.
        cause: io::Error,
    },
    /// A program is missing.
    #[error("{program} is not installed: install {package}")]
    MissingProgram {
        /// Its name.
        program: &'static str,
        /// Debian's and Fedora's packages with it.
        package: &'static str,
    },
    /// A program failed.
    #[error("{program}: {cause}")]
    Program {
        /// Its name.
        program: &'static str,
        /// What it said.
        cause: io::Error,
    },
}

/// The stores of a machine and a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustStores {
    system: Option<SystemStore>,
    /// Folders with databases of NSS (`cert9.db`).
    databases: Vec<PathBuf>,
}

/// Where a distribution keeps further authorities, and how it reads them.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SystemStore {
    folder: PathBuf,
    kind: &'static SystemStoreKind,
}

#[derive(Debug, PartialEq, Eq)]
struct SystemStoreKind {
    folder: &'static str,
    /// The programs read files with this ending only.
    extension: &'static str,
    program: &'static str,
    install: &'static [&'static str],
    remove: &'static [&'static str],
    package: &'static str,
}

const SYSTEM_STORES: &[SystemStoreKind] = &[
    // Debian, Ubuntu, Alpine.
    SystemStoreKind {
        folder: "usr/local/share/ca-certificates",
        extension: "crt",
        program: "update-ca-certificates",
        install: &[],
        remove: &["--fresh"],
        package: "ca-certificates",
    },
    // Fedora, Red Hat.
    SystemStoreKind {
        folder: "etc/pki/ca-trust/source/anchors",
        extension: "pem",
        program: "update-ca-trust",
        install: &["extract"],
        remove: &["extract"],
        package: "ca-certificates",
    },
    // Arch.
    SystemStoreKind {
        folder: "etc/ca-certificates/trust-source/anchors",
        extension: "crt",
        program: "trust",
        install: &["extract-compat"],
        remove: &["extract-compat"],
        package: "p11-kit",
    },
    // openSUSE.
    SystemStoreKind {
        folder: "usr/share/pki/trust/anchors",
        extension: "pem",
        program: "update-ca-certificates",
        install: &[],
        remove: &[],
        package: "ca-certificates",
    },
];

/// Databases of Chromium, below the home directory. The second is the newer place.
const CHROMIUM_DATABASES: [&str; 3] = [
    ".pki/nssdb",
    ".local/share/pki/nssdb",
    "snap/chromium/current/.pki/nssdb",
];

/// Folders with a database for each profile of Firefox, below the home directory.
const FIREFOX_PROFILES: [&str; 4] = [
    ".mozilla/firefox",
    ".config/mozilla/firefox",
    "snap/firefox/common/.mozilla/firefox",
    ".var/app/org.mozilla.firefox/.mozilla/firefox",
];

impl TrustStores {
    /// The stores below the root directory of the machine and the home directory of a user.
    pub fn find(root: &Path, home: &Path) -> Self {
        let store = |kind: &'static SystemStoreKind| SystemStore {
            folder: root.join(kind.folder),
            kind,
        };
        let system = SYSTEM_STORES
            .iter()
            .map(store)
            .find(|store| store.folder.is_dir());
        let profiles = FIREFOX_PROFILES
            .iter()
            .flat_map(|folder| subfolders(&home.join(folder)));
        let chromium = CHROMIUM_DATABASES.iter().map(|folder| home.join(folder));
        let databases = chromium
            .chain(profiles)
            .filter(|it| it.join("cert9.db").is_file());
        Self {
            system,
            databases: databases.collect(),
        }
    }

    /// Whether there is no store.
    pub fn is_empty(&self) -> bool {
        self.system.is_none() && self.databases.is_empty()
    }

    /// Puts the root of an authority into each store. Returns how many have it.
    pub fn install(&self, authority: &LocalAuthority, runner: &mut dyn TrustRunner) -> usize {
        self.change_each(runner, |store, runner| match store {
            Store::System(store) => store.install(authority, runner),
            Store::Database(folder) => {
                let root = authority.root_path();
                let words = ["-A", "-t", "C,,", "-i"].map(OsStr::new);
                certutil(
                    runner,
                    folder,
                    authority,
                    &[&words[..], &[root.as_os_str()]].concat(),
                )
            }
        })
    }

    /// Takes the root of an authority out of each store. Returns how many do not have it any more.
    pub fn remove(&self, authority: &LocalAuthority, runner: &mut dyn TrustRunner) -> usize {
        self.change_each(runner, |store, runner| match store {
            Store::System(store) => store.remove(authority, runner),
            Store::Database(folder) => {
                match certutil(runner, folder, authority, &[OsStr::new("-L")]) {
                    Ok(()) => certutil(runner, folder, authority, &[OsStr::new("-D")]),
                    // It knows no such certificate.
                    Err(TrustError::Program { .. }) => Ok(()),
                    Err(error) => Err(error),
                }
            }
        })
    }

    fn change_each(
        &self,
        runner: &mut dyn TrustRunner,
        change: impl Fn(Store<'_>, &mut dyn TrustRunner) -> Result<(), TrustError>,
    ) -> usize {
        let system = self.system.iter().map(Store::System);
        let databases = self.databases.iter().map(|folder| Store::Database(folder));
        let mut changed = 0;
        for store in system.chain(databases) {
            let result = change(store, runner);
            changed += usize::from(result.is_ok());
            runner.report(&TrustStep {
                store: store.folder(),
                result,
            });
        }
        changed
    }
}

#[derive(Clone, Copy)]
enum Store<'a> {
    System(&'a SystemStore),
    Database(&'a Path),
}

impl<'a> Store<'a> {
    fn folder(self) -> &'a Path {
        match self {
            Self::System(store) => &store.folder,
            Self::Database(folder) => folder,
        }
    }
}

impl SystemStore {
    fn path(&self, authority: &LocalAuthority) -> PathBuf {
        let name = authority.name().to_ascii_lowercase().replace(' ', "-");
        self.folder.join(format!("{name}.{}", self.kind.extension))
    }

    fn install(
        &self,
        authority: &LocalAuthority,
        runner: &mut dyn TrustRunner,
    ) -> Result<(), TrustError> {
        let path = self.path(authority);
        let place = |temporary: &Path| std::fs::rename(temporary, &path);
        let written = super::write_whole(&path, authority.root_pem().as_bytes(), 0o644, place);
        written.map_err(|cause| file_error(&path, cause))?;
        self.update(self.kind.install, runner)
    }

    fn remove(
        &self,
        authority: &LocalAuthority,
        runner: &mut dyn TrustRunner,
    ) -> Result<(), TrustError> {
        let path = self.path(authority);
        match std::fs::remove_file(&path) {
            Ok(()) => self.update(self.kind.remove, runner),
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(cause) => Err(file_error(&path, cause)),
        }
    }

    fn update(&self, words: &[&str], runner: &mut dyn TrustRunner) -> Result<(), TrustError> {
        let words: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
        run(runner, self.kind.program, self.kind.package, &words)
    }
}

impl LocalAuthority {
    /// The name of the root in stores.
    fn name(&self) -> &str {
        let subject = &self.root_facts().subject;
        subject.strip_prefix("CN=").unwrap_or(subject)
    }
}

fn run(
    runner: &mut dyn TrustRunner,
    program: &'static str,
    package: &'static str,
    arguments: &[&OsStr],
) -> Result<(), TrustError> {
    runner
        .run(program, arguments)
        .map_err(|cause| match cause.kind() {
            io::ErrorKind::NotFound => TrustError::MissingProgram { program, package },
            _ => TrustError::Program { program, cause },
        })
}

fn file_error(path: &Path, cause: io::Error) -> TrustError {
    match cause.kind() {
        io::ErrorKind::PermissionDenied => TrustError::NeedsRoot,
        _ => TrustError::File {
            path: path.to_owned(),
            cause,
        },
    }
}

/// Runs `certutil` on the root of an authority in a database.
fn certutil(
    runner: &mut dyn TrustRunner,
    folder: &Path,
    authority: &LocalAuthority,
    words: &[&OsStr],
) -> Result<(), TrustError> {
    // The form of databases since 2010.
    let mut database = OsString::from("sql:");
    database.push(folder);
    let place = [
        OsStr::new("-d"),
        &database,
        OsStr::new("-n"),
        OsStr::new(authority.name()),
    ];
    run(
        runner,
        "certutil",
        "libnss3-tools (Fedora: nss-tools)",
        &[words, &place].concat(),
    )
}

fn subfolders(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    folders.sort();
    folders
}
