//! `penstock hash-password`: the line of a user for the file that `basic_auth.users` names.
//!
//! # Invariants
//!
//! - The password is never an argument, which every process of the machine can read, and never
//!   shown: a terminal does not echo it.

use std::io::{self, BufRead, IsTerminal, Read, Write};

use penstock_rules::basic_auth::hash_password;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::hardening;

/// Longest input that is read; a password is shorter.
const MAX_INPUT_BYTES: u64 = 4096;

/// Reads the password from the terminal, twice, or the first line of standard input; returns its
/// hash, behind `user:` if there is a user.
pub(super) fn run(user: Option<&str>) -> Result<String, String> {
    if let Some(user) = user {
        check_user(user)?;
    }
    hardening::harden_process()?;
    let stdin = io::stdin();
    let failed = |error: io::Error| format!("the password: {error}");
    let password = match stdin.is_terminal() {
        true => ask_twice().map_err(failed)??,
        false => read_line(&mut stdin.lock()).map_err(failed)?,
    };
    let hash = hash_password(&password)?;
    Ok(match user {
        Some(user) => format!("{user}:{hash}"),
        None => hash,
    })
}

/// Checks that a name can stand in the file of users, and in a request.
fn check_user(user: &str) -> Result<(), String> {
    let is_comment = user.starts_with('#');
    if user.is_empty()
        || is_comment
        || user.contains([':', '\n'])
        || user.contains(char::is_control)
    {
        return Err(format!(
            "a user's name has no colon and no control character, and begins without `#`: {user:?}"
        ));
    }
    Ok(())
}

/// Reads a line without its end.
fn read_line(input: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    input.take(MAX_INPUT_BYTES).read_until(b'\n', &mut line)?;
    if line.last() == Some(&b'\n') {
        line.pop();
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(line)
}

/// Asks for the password and once more: what is not seen may be mistyped.
fn ask_twice() -> io::Result<Result<Vec<u8>, String>> {
    let _quiet = SilentTerminal::open()?;
    let first = ask("Password: ")?;
    let second = ask("Once more: ")?;
    Ok(match first == second {
        true => Ok(first),
        false => Err("the two passwords differ".to_owned()),
    })
}

fn ask(prompt: &str) -> io::Result<Vec<u8>> {
    // Standard output may be the file of users.
    let mut terminal = io::stderr();
    terminal.write_all(prompt.as_bytes())?;
    let line = read_line(&mut io::stdin().lock())?;
    // The terminal has not shown the line's end either.
    terminal.write_all(b"\n")?;
    Ok(line)
}

/// A terminal that does not show what is typed; dropped, it is as before.
struct SilentTerminal(Termios);

impl SilentTerminal {
    fn open() -> io::Result<Self> {
        let before = tcgetattr(io::stdin())?;
        let mut changed = before.clone();
        changed.local_modes -= LocalModes::ECHO;
        tcsetattr(io::stdin(), OptionalActions::Flush, &changed)?;
        Ok(Self(before))
    }
}

impl Drop for SilentTerminal {
    fn drop(&mut self) {
        // Without its terminal there is nothing to restore.
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_password_is_a_line_without_its_end() {
        for (input, expected) in [
            ("secret\n", "secret"),
            ("secret\r\nmore\n", "secret"),
            (" two words ", " two words "),
            ("", ""),
        ] {
            let line = read_line(&mut input.as_bytes()).unwrap();
            assert_eq!(line, expected.as_bytes(), "{input:?}");
        }
        let long = vec![b'x'; 10_000];
        let line = read_line(&mut &long[..]).unwrap();
        assert_eq!(line.len() as u64, MAX_INPUT_BYTES);
    }

    #[test]
    fn a_user_is_a_name_that_a_file_can_hold() {
        assert!(check_user("anna@example.com").is_ok());
        for user in ["", "a:b", "a\nb", "#a"] {
            assert!(check_user(user).is_err(), "{user:?}");
        }
    }
}
