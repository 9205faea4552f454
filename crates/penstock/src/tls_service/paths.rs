//! Where certificates and the local authority are kept, unless the configuration says so.

use std::path::{Path, PathBuf};

use penstock_sys::account;

/// The folder of the server's state: for root that of the system, for others their own.
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
    if account::is_root() {
        return Path::new("/var/lib/penstock").to_owned();
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
