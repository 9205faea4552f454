//! Stores of distributions and browsers in a directory of their own; the real `certutil`.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustls::pki_types::UnixTime;

use super::{TrustRunner, TrustStep, TrustStores};
use crate::local_authority::LocalAuthority;

/// Answers for programs, and keeps what it is asked.
#[derive(Default)]
struct FakeRunner {
    commands: Vec<String>,
    steps: Vec<String>,
    /// What programs answer; success without it.
    failure: Option<io::ErrorKind>,
}

impl TrustRunner for FakeRunner {
    fn run(&mut self, program: &str, arguments: &[&OsStr]) -> io::Result<()> {
        let words: Vec<_> = arguments
            .iter()
            .map(|word| word.to_string_lossy())
            .collect();
        self.commands
            .push(format!("{program} {}", words.join(" ")).trim().to_owned());
        self.failure.map_or(Ok(()), |kind| Err(kind.into()))
    }

    fn report(&mut self, step: &TrustStep<'_>) {
        let result = step
            .result
            .as_ref()
            .map_or_else(ToString::to_string, |()| "done".to_owned());
        self.steps
            .push(format!("{}: {result}", step.store.display()));
    }
}

/// A machine with the root and home directories in one temporary directory.
struct Machine {
    dir: tempfile::TempDir,
    authority: LocalAuthority,
}

impl Machine {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let authority =
            LocalAuthority::open(&dir.path().join("authority"), UnixTime::now()).unwrap();
        Self { dir, authority }
    }

    fn folder(&self, path: &str) -> PathBuf {
        let folder = self.dir.path().join(path);
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    fn stores(&self) -> TrustStores {
        TrustStores::find(self.dir.path(), &self.dir.path().join("home"))
    }
}

fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn each_distribution_has_its_folder_and_its_program() {
    let rows = [
        (
            "usr/local/share/ca-certificates",
            "crt",
            "update-ca-certificates",
            "update-ca-certificates --fresh",
        ),
        (
            "etc/pki/ca-trust/source/anchors",
            "pem",
            "update-ca-trust extract",
            "update-ca-trust extract",
        ),
        (
            "etc/ca-certificates/trust-source/anchors",
            "crt",
            "trust extract-compat",
            "trust extract-compat",
        ),
        (
            "usr/share/pki/trust/anchors",
            "pem",
            "update-ca-certificates",
            "update-ca-certificates",
        ),
    ];
    for (path, extension, install, remove) in rows {
        let machine = Machine::new();
        let folder = machine.folder(path);
        let stores = machine.stores();
        let mut runner = FakeRunner::default();
        assert_eq!(stores.install(&machine.authority, &mut runner), 1);
        let [file] = &files(&folder)[..] else {
            panic!("one file in {path}");
        };
        assert!(file.starts_with("penstock-local-authority-"), "{file}");
        assert!(file.ends_with(&format!(".{extension}")), "{file}");
        let text = crate::pem_file::read(&folder.join(file)).unwrap().text;
        assert_eq!(*text, machine.authority.root_pem().as_bytes());
        // A second time changes nothing.
        assert_eq!(stores.install(&machine.authority, &mut runner), 1);
        assert_eq!(files(&folder).len(), 1);
        assert_eq!(stores.remove(&machine.authority, &mut runner), 1);
        assert_eq!(files(&folder), [""; 0]);
        assert_eq!(stores.remove(&machine.authority, &mut runner), 1);
        assert_eq!(runner.commands, [install, install, remove]);
        assert_eq!(runner.steps, vec![format!("{}: done", folder.display()); 4]);
    }
}

#[test]
fn a_machine_without_stores_has_none() {
    let machine = Machine::new();
    machine.folder("home/.mozilla/firefox/no-profile");
    let mut runner = FakeRunner::default();
    assert!(machine.stores().is_empty());
    assert_eq!(machine.stores().install(&machine.authority, &mut runner), 0);
    assert!(runner.commands.is_empty() && runner.steps.is_empty());
}

#[test]
fn a_missing_program_is_named_with_its_package() {
    let machine = Machine::new();
    machine.folder("usr/local/share/ca-certificates");
    let profile = machine.folder("home/.mozilla/firefox/abc.default");
    std::fs::File::create_new(profile.join("cert9.db")).unwrap();
    let mut runner = FakeRunner {
        failure: Some(io::ErrorKind::NotFound),
        ..Default::default()
    };
    assert_eq!(machine.stores().install(&machine.authority, &mut runner), 0);
    assert!(
        runner.steps[0].ends_with("install ca-certificates"),
        "{:?}",
        runner.steps
    );
    assert!(runner.steps[1].contains("certutil is not installed: install libnss3-tools"));
    assert_eq!(machine.stores().remove(&machine.authority, &mut runner), 0);
}

#[test]
fn a_failure_is_shown_and_the_next_store_is_tried() {
    let machine = Machine::new();
    machine.folder("etc/pki/ca-trust/source/anchors");
    let database = machine.folder("home/.pki/nssdb");
    std::fs::File::create_new(database.join("cert9.db")).unwrap();
    let mut runner = FakeRunner {
        failure: Some(io::ErrorKind::TimedOut),
        ..Default::default()
    };
    assert_eq!(machine.stores().install(&machine.authority, &mut runner), 0);
    assert_eq!(runner.commands.len(), 2);
    assert!(
        runner.steps[0].ends_with("update-ca-trust: timed out"),
        "{:?}",
        runner.steps
    );
    assert!(
        runner.steps[1].ends_with("certutil: timed out"),
        "{:?}",
        runner.steps
    );
}

#[test]
fn a_folder_of_root_says_to_use_sudo() {
    let denied = io::ErrorKind::PermissionDenied.into();
    let error = super::file_error(Path::new("/usr/local/share"), denied).to_string();
    assert_eq!(
        error,
        "only root may change it: run the command again with sudo"
    );
}

/// Runs the real programs.
struct RealRunner;

impl TrustRunner for RealRunner {
    #[expect(clippy::disallowed_methods, reason = "a test has no loop to block")]
    fn run(&mut self, program: &str, arguments: &[&OsStr]) -> io::Result<()> {
        let output = Command::new(program).args(arguments).output()?;
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        output
            .status
            .success()
            .then_some(())
            .ok_or_else(|| io::Error::other(error))
    }

    fn report(&mut self, step: &TrustStep<'_>) {
        assert!(
            step.result.is_ok(),
            "{}: {:?}",
            step.store.display(),
            step.result
        );
    }
}

#[test]
fn certutil_changes_databases_of_browsers() {
    let machine = Machine::new();
    let places = [
        "home/.pki/nssdb",
        "home/.mozilla/firefox/abc.default",
        "home/.local/share/pki/nssdb",
    ];
    let databases = places.map(|place| format!("sql:{}", machine.folder(place).display()));
    let certutil = |words: &[&str]| {
        let words: Vec<&OsStr> = words.iter().map(OsStr::new).collect();
        RealRunner.run("certutil", &words)
    };
    for database in &databases {
        let made = certutil(&["-N", "--empty-password", "-d", database]);
        made.expect("certutil is installed (scripts/setup test)");
    }
    let name = machine.authority.name().to_owned();
    // `-V -u L` asks whether it is trusted as an authority of servers.
    let has = |database: &String| certutil(&["-V", "-u", "L", "-n", &name, "-d", database]).is_ok();
    assert_eq!(
        machine
            .stores()
            .install(&machine.authority, &mut RealRunner),
        3
    );
    assert!(databases.iter().all(has));
    assert_eq!(
        machine
            .stores()
            .install(&machine.authority, &mut RealRunner),
        3
    );
    assert_eq!(
        machine.stores().remove(&machine.authority, &mut RealRunner),
        3
    );
    assert!(!databases.iter().any(has));
    assert_eq!(
        machine.stores().remove(&machine.authority, &mut RealRunner),
        3
    );
}
