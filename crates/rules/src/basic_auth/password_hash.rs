//! Hashes of passwords as `htpasswd` writes them: bcrypt, argon2id, SHA-1; new ones by bcrypt.
//!
//! Pure but for the salt of a new one. Verified by the bcrypt and argon2 crates in a pool, as they take a long time on purpose.

use std::fmt;

use argon2::password_hash::PasswordVerifier as _;
use argon2::password_hash::phc::PasswordHash as Argon2Hash;
use aws_lc_rs::{constant_time, digest};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// Most memory in KiB that a hash of argon2id may take: more is a mistake, or an attack by a file.
const MAX_ARGON2_MEMORY: u32 = 1 << 20;

/// Most passes over that memory; programs that make hashes take 1 to 4.
const MAX_ARGON2_PASSES: u32 = 16;

/// Highest cost of bcrypt, about a second of a core.
const MAX_BCRYPT_COST: u32 = 16;

/// Cost of new hashes: a quarter of a second of a core. A right password is verified once and
/// remembered.
const NEW_BCRYPT_COST: u32 = 12;

/// Longest password of bcrypt in bytes: what follows would not count.
const MAX_PASSWORD_BYTES: usize = 72;

/// Hashes a password for a file of users. *Blocking*: a quarter of a second of a core.
///
/// # Errors
/// The password is empty, longer than 72 bytes or has a byte that none can have.
pub fn hash_password(password: &[u8]) -> Result<String, String> {
    hash_with_cost(password, NEW_BCRYPT_COST)
}

fn hash_with_cost(password: &[u8], cost: u32) -> Result<String, String> {
    if password.is_empty() {
        return Err("the password is empty".to_owned());
    }
    if password.len() > MAX_PASSWORD_BYTES {
        return Err(format!(
            "the password has {} bytes: bcrypt takes {MAX_PASSWORD_BYTES} at most",
            password.len()
        ));
    }
    if password.iter().any(u8::is_ascii_control) {
        return Err("the password has a control character, such as a tab or a line end".to_owned());
    }
    bcrypt::hash(password, cost).map_err(|error| error.to_string())
}

/// A hash that can be verified. Shown as `***`.
#[derive(Clone)]
pub(crate) struct PasswordHash {
    text: Box<str>,
    kind: HashKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum HashKind {
    Bcrypt,
    Argon2id,
    Sha1,
}

impl Default for PasswordHash {
    /// A hash that no password has.
    fn default() -> Self {
        Self {
            text: "{SHA}".into(),
            kind: HashKind::Sha1,
        }
    }
}

impl fmt::Debug for PasswordHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

impl PasswordHash {
    /// Reads a hash; `None` for other forms, and for costs beyond all reason.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let kind = match text {
            _ if text.starts_with("$2") => {
                let cost = text.get(4..6)?.parse::<u32>().ok()?;
                let is_hash = text.parse::<bcrypt::HashParts>().is_ok();
                (is_hash && cost <= MAX_BCRYPT_COST).then_some(HashKind::Bcrypt)
            }
            _ if text.starts_with("$argon2id$") => {
                let hash = Argon2Hash::new(text).ok()?;
                let (memory, passes) =
                    (hash.params.get_decimal("m")?, hash.params.get_decimal("t")?);
                let is_bounded = memory <= MAX_ARGON2_MEMORY && passes <= MAX_ARGON2_PASSES;
                // What the hash cannot be computed with is found out now.
                let is_usable = argon2::Params::try_from(&hash).is_ok();
                (is_bounded && is_usable && hash.hash.is_some()).then_some(HashKind::Argon2id)
            }
            _ => {
                let digest = STANDARD.decode(text.strip_prefix("{SHA}")?).ok()?;
                (digest.len() == digest::SHA1_OUTPUT_LEN).then_some(HashKind::Sha1)
            }
        };
        Some(Self {
            text: text.into(),
            kind: kind?,
        })
    }

    /// How long it takes to verify, to compare hashes of one file.
    pub(crate) fn cost(&self) -> (u8, u32) {
        match self.kind {
            HashKind::Sha1 => (0, 0),
            HashKind::Bcrypt => {
                let cost = self.text.get(4..6).and_then(|text| text.parse().ok());
                (1, cost.unwrap_or_default())
            }
            HashKind::Argon2id => {
                let hash = Argon2Hash::new(&self.text).ok();
                let params = hash.map(|hash| hash.params);
                let of = |name| {
                    params
                        .as_ref()
                        .and_then(|it| it.get_decimal(name))
                        .unwrap_or(1)
                };
                (1, of("m").saturating_mul(of("t")))
            }
        }
    }

    /// Whether a password is that of the hash. *Blocking*: up to a second of a core.
    pub(crate) fn verify(&self, password: &[u8]) -> bool {
        match self.kind {
            // Cuts a password at 72 bytes, as htpasswd does.
            HashKind::Bcrypt => bcrypt::verify(password, &self.text).unwrap_or(false),
            HashKind::Argon2id => Argon2Hash::new(&self.text).is_ok_and(|hash| {
                let argon2 = argon2::Argon2::default();
                argon2.verify_password(password, &hash).is_ok()
            }),
            HashKind::Sha1 => {
                let expected = STANDARD.decode(self.text.trim_start_matches("{SHA}"));
                let actual = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, password);
                expected.is_ok_and(|expected| {
                    constant_time::verify_slices_are_equal(&expected, actual.as_ref()).is_ok()
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_of_other_programs_are_verified() {
        // By bcrypt and argon2-cffi of Python, and by sha1sum.
        for (hash, password) in [
            (
                "$2b$05$zDoxuuBuZ7gBZcNn6uK7WuLrqJZmbQFYwMqTQwm2gXE9eAEMrIdAC",
                "gehäim pw",
            ),
            (
                "$argon2id$v=19$m=512,t=1,p=1$KX78cnswTIu8IKHKYD+UwQ$xHpEgEylGJBo8qObo1ugubolUNXKrFm0BRwUAtQUhn8",
                "gehäim pw",
            ),
            ("{SHA}W6ph5Mm5Pz8GgiULbPgzG37mj9g=", "password"),
        ] {
            let parsed = PasswordHash::parse(hash).unwrap();
            assert!(parsed.verify(password.as_bytes()), "{hash}");
            for wrong in ["", "wrong", &password[1..], &format!("{password} ")] {
                assert!(!parsed.verify(wrong.as_bytes()), "{hash} {wrong}");
            }
        }
        // Only the first 72 bytes count, as in other programs that read such files.
        let long = "$2b$05$mo/BhAmlYV3g6cpNEOKy6OZjRbgteZMLLzYBtaKybIKWy00td33wi";
        let long = PasswordHash::parse(long).unwrap();
        assert!(long.verify(&[b'x'; 72]) && long.verify(&[b'x'; 80]));
        assert!(!long.verify(&[b'x'; 71]));
        let none = PasswordHash::default();
        assert!(!none.verify(b"") && format!("{none:?}") == "***");
    }

    #[test]
    fn a_new_hash_verifies_its_password_alone() {
        let password = "gehäim pw".as_bytes();
        let hashes = [(); 2].map(|()| hash_with_cost(password, 4).unwrap());
        assert_ne!(hashes[0], hashes[1], "each has a salt of its own");
        for hash in hashes {
            assert!(hash.starts_with("$2b$04$") && hash.len() == 60, "{hash}");
            let parsed = PasswordHash::parse(&hash).unwrap();
            assert!(parsed.verify(password) && !parsed.verify(b"other"));
        }
        assert!(hash_with_cost(&[b'x'; 72], 4).is_ok());
        for (password, expected) in [
            (&b""[..], "is empty"),
            (&[b'x'; 73], "has 73 bytes"),
            (b"a\nb", "control character"),
            (b"a\0b", "control character"),
        ] {
            let error = hash_with_cost(password, 4).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        const { assert!(NEW_BCRYPT_COST <= MAX_BCRYPT_COST) };
    }

    #[test]
    fn what_is_no_hash_is_refused() {
        for text in [
            "",
            "secret",
            "{SHA}",
            "{SHA}W6ph5Mm5",
            "$2y$99$LCFWnbv4HqqZJyjLGyOUSOAtn2fgDFkVyOLwHbvqhE6aJqJ2YpmzC",
            "$2y$05$short",
            "$argon2id$v=19$m=4294967295,t=1,p=1$c29tZXNhbHQ$AAAAAAAAAAAAAAAAAAAAAAAAAAA",
            "$argon2id$v=19$m=4096,t=1,p=1$c29tZXNhbHQ",
            "$argon2id$v=19$m=4096,t=4294967295,p=1$c29tZXNhbHQ$AAAAAAAAAAAAAAAAAAAAAAAAAAA",
            "$argon2id$v=19$m=4096,p=1$c29tZXNhbHQ$AAAAAAAAAAAAAAAAAAAAAAAAAAA",
            "$apr1$x$y",
        ] {
            assert!(PasswordHash::parse(text).is_none(), "{text}");
        }
    }
}
