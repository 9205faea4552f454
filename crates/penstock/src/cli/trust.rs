//! `penstock trust`: makes browsers and programs of this machine trust the local certificate
//! authority, and no longer with `--remove`.
//!
//! `tls::local_authority::trust` has the steps; this file finds the authority, runs the programs and
//! prints each step.
//!
//! The store of the system needs root, and the authority is the user's: under `sudo` it is that of
//! the user that called it.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use penstock_sys::{account, file};
use penstock_tls::LocalAuthority;
use penstock_tls::local_authority::trust::{TrustRunner, TrustStep, TrustStores};
use rustls::pki_types::UnixTime;

use super::print_line;
use crate::tls_service::{local_authority_folder, local_authority_folder_of};

/// How long a program may run: the system's reads all its authorities.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(60);

/// The part of a program's output that an error quotes.
const MAX_QUOTED_BYTES: u64 = 2000;

/// Changes the stores, and prints each step.
///
/// # Errors
/// There is no authority, no store, or none could be changed.
pub(super) fn run(remove: bool) -> Result<String, String> {
    let caller = Caller::find();
    if remove && !LocalAuthority::exists(&caller.authority) {
        let folder = caller.authority.display();
        return Ok(format!(
            "there is no local authority in {folder}: nothing to remove"
        ));
    }
    let authority = LocalAuthority::open(&caller.authority, UnixTime::now());
    let authority = authority.map_err(|error| error.to_string())?;
    let root = authority.root_path();
    let root = root.display();
    print_line(&format!("local authority: {root}"));
    let stores = TrustStores::find(Path::new("/"), &caller.home);
    if stores.is_empty() {
        return Err(format!(
            "there is no store of the system or of a browser: import {root} by hand"
        ));
    }
    let mut runner = StepPrinter {
        remove,
        failures: 0,
    };
    let changed = match remove {
        true => stores.remove(&authority, &mut runner),
        false => stores.install(&authority, &mut runner),
    };
    match (runner.failures, changed) {
        (0, _) => Ok(String::new()),
        (failures, changed) => Err(format!(
            "not changed: {failures} of {}",
            super::pluralize((failures + changed) as u64, "store")
        )),
    }
}

/// The user that this is for.
struct Caller {
    home: PathBuf,
    /// The folder of the local authority.
    authority: PathBuf,
}

impl Caller {
    fn find() -> Self {
        let home = || std::env::var_os("HOME").map_or_else(|| "/".into(), PathBuf::from);
        let own = || Self {
            home: home(),
            authority: local_authority_folder(),
        };
        let Some(sudo_home) = home_behind_sudo() else {
            return own();
        };
        let authority = local_authority_folder_of(&sudo_home);
        // Without one, the server runs as root.
        let authority = match LocalAuthority::exists(&authority) {
            true => authority,
            false => local_authority_folder(),
        };
        Self {
            home: sudo_home,
            authority,
        }
    }
}

/// The home directory of the user that called `sudo`.
fn home_behind_sudo() -> Option<PathBuf> {
    if !account::is_root() {
        return None;
    }
    let name = std::env::var("SUDO_USER")
        .ok()
        .filter(|name| name != "root")?;
    let user = account::find_user(&name).ok()??;
    user.home.map(PathBuf::from)
}

/// Runs the programs and prints the steps.
struct StepPrinter {
    remove: bool,
    failures: usize,
}

impl TrustRunner for StepPrinter {
    fn run(&mut self, program: &str, arguments: &[&OsStr]) -> io::Result<()> {
        let output = file::unnamed_temp_file(&std::env::temp_dir())?;
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output.try_clone()?)
            .spawn()?;
        let deadline = Instant::now() + PROGRAM_TIMEOUT;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            if Instant::now() > deadline {
                child.kill()?;
                child.wait()?;
                let seconds = PROGRAM_TIMEOUT.as_secs();
                return Err(io::Error::other(format!("no end after {seconds} s")));
            }
            super::admin::sleep_briefly();
        };
        match status.success() {
            true => Ok(()),
            false => Err(io::Error::other(format!("{status}: {}", quote(output)))),
        }
    }

    fn report(&mut self, step: &TrustStep<'_>) {
        let store = step.store.display();
        let done = match self.remove {
            true => "removed from",
            false => "trusted in",
        };
        match &step.result {
            Ok(()) => print_line(&format!("{done} {store}")),
            Err(error) => {
                self.failures += 1;
                super::print_error(&format!("not {done} {store}: {error}"));
            }
        }
    }
}

/// What a program has printed, on one line.
fn quote(mut output: File) -> String {
    let mut text = Vec::new();
    // Without its output the status alone is shown.
    let _ = output.rewind();
    let _ = output.take(MAX_QUOTED_BYTES).read_to_end(&mut text);
    let text = String::from_utf8_lossy(&text);
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_fails_is_quoted_and_one_that_is_missing_is_known() {
        let mut runner = StepPrinter {
            remove: false,
            failures: 0,
        };
        let words = ["-c", "echo out; echo err >&2; exit 3"].map(OsStr::new);
        let error = runner.run("sh", &words).unwrap_err().to_string();
        assert!(error.ends_with("exit status: 3: out err"), "{error}");
        assert!(runner.run("true", &[]).is_ok());
        let missing = runner.run("penstock-no-such-program", &[]).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}
