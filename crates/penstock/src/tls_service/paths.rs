//! Where certificates and the local authority are kept, unless the configuration says so.

use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, lchown};
use std::path::{Path, PathBuf};
use std::{fs, io};

use penstock_sys::account;

/// The state of servers that root starts.
const SYSTEM_FOLDER: &str = "/var/lib/penstock";

/// More than the certificates of any server.
const MAX_FILES: usize = 1_000_000;

/// Gives the system's folder to the user that a server switches to, with what servers have kept there
/// as root. Does nothing where systemd has made the folder, or another user owns it.
///
/// # Errors
/// Those of the file system, with the path.
pub(crate) fn give_system_folder_to(user: &account::User, gid: u32) -> Result<(), String> {
    if state_folder() != Path::new(SYSTEM_FOLDER) {
        return Ok(());
    }
    give_folder(Path::new(SYSTEM_FOLDER), user.uid, gid)
}

fn give_folder(folder: &Path, uid: u32, gid: u32) -> Result<(), String> {
    let explain = |path: &Path, error: io::Error| format!("{}: {error}", path.display());
    fs::DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(folder)
        .map_err(|error| explain(folder, error))?;
    let (own, _) = account::effective_ids();
    let owner = folder.symlink_metadata().map(|about| about.uid());
    if owner.map_err(|error| explain(folder, error))? != own {
        return Ok(());
    }
    // The folder itself last: until then no other user can put a link into it.
    let (mut left, mut found) = (vec![folder.to_owned()], Vec::new());
    while let Some(path) = left.pop() {
        if found.len() >= MAX_FILES {
            let path = folder.display();
            return Err(format!("{path}: more than {MAX_FILES} files"));
        }
        let about = path.symlink_metadata();
        if about.is_ok_and(|about| about.is_dir()) {
            let entries = path.read_dir().map_err(|error| explain(&path, error))?;
            left.extend(entries.flatten().map(|entry| entry.path()));
        }
        found.push(path);
    }
    for path in found.iter().rev() {
        lchown(path, Some(uid), Some(gid)).map_err(|error| explain(path, error))?;
    }
    Ok(())
}

/// The folder of the server's state: for root that of the system, and for a user that root has given
/// it to; for others their own.
fn state_folder() -> PathBuf {
    let from_env = |name: &str| {
        let value = std::env::var_os(name).filter(|value| !value.is_empty())?;
        Some(PathBuf::from(value)).filter(|path| path.is_absolute())
    };
    // systemd's `StateDirectory=` may name several, with colons between.
    let of_unit = from_env("STATE_DIRECTORY").and_then(|path| {
        let text = path.into_os_string().into_string().ok()?;
        text.split(':').next().map(PathBuf::from)
    });
    if let Some(folder) = of_unit {
        return folder;
    }
    let system = Path::new(SYSTEM_FOLDER);
    let own = account::effective_ids().0;
    let is_given = || system.metadata().is_ok_and(|about| about.uid() == own);
    if account::is_root() || is_given() {
        return system.to_owned();
    }
    let data = from_env("XDG_DATA_HOME")
        .or_else(|| from_env("HOME").map(|home| home.join(".local/share")));
    data.unwrap_or_else(std::env::temp_dir).join("penstock")
}

/// The folder of the local certificate authority of a user without a setting of its own.
pub(crate) fn local_authority_folder_of(home: &Path) -> PathBuf {
    home.join(".local/share/penstock/local-authority")
}

/// The folder of certificates by ACME.
pub(crate) fn default_certificate_folder() -> PathBuf {
    state_folder().join("certificates")
}

/// The folder of the local certificate authority.
pub(crate) fn local_authority_folder() -> PathBuf {
    state_folder().join("local-authority")
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "a test has no loop to block")]
mod tests {
    use super::*;

    #[test]
    fn a_folder_is_given_with_its_files_and_no_target_of_a_link() {
        if !account::is_root() {
            return;
        }
        let name = format!("penstock-give-{}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        let state = folder.join("state");
        fs::create_dir_all(state.join("local-authority")).unwrap();
        fs::write(state.join("local-authority/root.pem"), "").unwrap();
        fs::write(folder.join("other"), "").unwrap();
        std::os::unix::fs::symlink(folder.join("other"), state.join("link")).unwrap();
        give_folder(&state, 12345, 54321).unwrap();
        let owner = |name: &str| {
            let about = folder.join(name).symlink_metadata().unwrap();
            (about.uid(), about.gid())
        };
        for given in ["state", "state/local-authority/root.pem", "state/link"] {
            assert_eq!(owner(given), (12345, 54321), "{given}");
        }
        assert_eq!(owner("other"), (0, 0));
        // That of another user stays.
        give_folder(&state, 1, 1).unwrap();
        assert_eq!(owner("state"), (12345, 54321));
        fs::remove_dir_all(&folder).unwrap();
    }
}
