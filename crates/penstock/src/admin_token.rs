//! The token for changes over TCP, read from its file before the server switches to another user.
//!
//! Used by `server` at the start, by `preflight` for `penstock check`, and by `cli`, which sends
//! it.
//!
//! # Invariants
//!
//! - A file that users outside its owner and group can read, or that others than its owner can
//!   write, is refused; so is a token that is easy to guess.
//! - The file is opened once: the checked content is the content read.

use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use penstock_config::is_hard_to_guess;
use penstock_status::AdminToken;
use penstock_sys::account;

/// Maximum file size: a token and its line end, with room for longer ones.
const MAX_FILE_BYTES: u64 = 4096;

/// Returns the token of the configured file, if any. A successor that may no longer read the file
/// uses the digest from its predecessor (`inherited_digest`). May block.
///
/// # Errors
/// What is wrong with the file, and what to do.
pub(crate) fn load_admin_token(
    path: Option<&Path>,
    inherited_digest: Option<[u8; 32]>,
) -> Result<Option<AdminToken>, String> {
    let Some(path) = path else {
        return Ok(None);
    };
    match (read_token_file(path), inherited_digest) {
        (Ok(text), _) => Ok(Some(AdminToken::new(&text))),
        (Err(_), Some(digest)) if account::check_file_readable(path).is_err() => {
            Ok(Some(AdminToken::from_digest(digest)))
        }
        (Err(error), _) => Err(format!("server.admin_token: {error}")),
    }
}

/// Returns the token in a file. May block.
///
/// # Errors
/// What is wrong with it, and what to do.
pub(crate) fn read_token_file(path: &Path) -> Result<String, String> {
    let shown = path.display();
    let named = |error: std::io::Error| format!("{shown}: {error}");
    #[expect(
        clippy::disallowed_methods,
        reason = "before the first loop, or in no server"
    )]
    let file = std::fs::File::open(path).map_err(named)?;
    let about = file.metadata().map_err(named)?;
    if !about.is_file() {
        return Err(format!("{shown}: not a regular file"));
    }
    let (uid, _) = account::effective_ids();
    if about.uid() != 0 && about.uid() != uid {
        let owner = about.uid();
        return Err(format!(
            "{shown}: belongs to user {owner}, which could change it: chown it to root or to the \
             user that starts the server"
        ));
    }
    if about.mode() & 0o026 != 0 {
        let mode = about.mode() & 0o777;
        return Err(format!(
            "{shown}: others may read or change it (its permissions are {mode:04o}): chmod 0600 {shown}"
        ));
    }
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1)
        .read_to_string(&mut text)
        .map_err(named)?;
    let token = text.trim_ascii();
    let is_plain = token.bytes().all(|byte| byte.is_ascii_graphic());
    if text.len() as u64 > MAX_FILE_BYTES || !is_plain || !is_hard_to_guess(token) {
        return Err(format!(
            "{shown}: not a random token: create one with `openssl rand -base64 32 > {shown}`"
        ));
    }
    Ok(token.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn takes_a_random_token_that_others_cannot_read() {
        let name = format!("penstock-token-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let good = "J8nC2vQm0dT5yWkX1bLrZ7fHsE4uPaG9oIeRjNqMtVw=";
        for (content, mode, error) in [
            (format!("{good}\n"), 0o600, None),
            (good.to_owned(), 0o640, None),
            (good.to_owned(), 0o400, None),
            (
                good.to_owned(),
                0o644,
                Some("(its permissions are 0644): chmod 0600"),
            ),
            (good.to_owned(), 0o620, Some("others may read or change it")),
            (good.to_owned(), 0o602, Some("others may read or change it")),
            (String::new(), 0o600, Some("openssl rand -base64 32")),
            ("secret".to_owned(), 0o600, Some("openssl rand -base64 32")),
            (format!("{good} {good}"), 0o600, Some("openssl rand")),
            (good.repeat(100), 0o600, Some("openssl rand")),
        ] {
            let mut file = std::fs::File::create(&path).unwrap();
            file.write_all(content.as_bytes()).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
            let read = read_token_file(&path);
            match error {
                None => assert_eq!(read.as_deref(), Ok(good), "{mode:o}"),
                Some(error) => {
                    let said = read.unwrap_err();
                    assert!(said.contains(error), "{content:?} {mode:o}: {said}");
                    assert!(!said.contains("J8nC"), "{said}");
                }
            }
        }
        let _ = std::fs::remove_file(&path);
        assert!(read_token_file(&path).unwrap_err().contains("No such file"));
        assert!(read_token_file(&std::env::temp_dir()).is_err());
    }

    #[test]
    fn a_server_that_follows_keeps_a_token_that_it_may_not_read() {
        assert!(
            load_admin_token(None, Some([1; 32])).unwrap().is_none(),
            "not wanted"
        );
        let path = Some(Path::new("/nowhere/token"));
        let kept = load_admin_token(path, Some([1; 32])).unwrap();
        assert_eq!(kept.map(|token| token.digest()), Some([1; 32]));
        assert!(load_admin_token(path, None).is_err());
    }
}
