//! Names of stored values: the layout of certmagic, so that its users recognise the files.
//!
//! ```text
//! acme/<ca>/users/<email>/<user>.json       the account: address of the account, contact
//! acme/<ca>/users/<email>/<user>.key        its private key (PKCS#8 in PEM)
//! acme/<ca>/challenge_tokens/<token>.json   an HTTP-01 response, for other front ends
//! certificates/<ca>/<name>/<name>.crt       the chain in PEM
//! certificates/<ca>/<name>/<name>.key       the private key in PEM
//! certificates/<ca>/<name>/<name>.json      names and authority
//! locks/<name>.lock                         a folder's locks
//! ```
//!
//! `<ca>` is host and path of the directory, such as `acme-v02.api.letsencrypt.org-directory`.
//! `<email>` is `default` without an address. `*` is written `wildcard_`.

use crate::name::CertificateName;

/// The segment `<ca>` of a directory's URL.
#[must_use]
pub fn authority_segment(directory_url: &str) -> String {
    let (_, rest) = directory_url
        .split_once("://")
        .unwrap_or(("", directory_url));
    let path = rest.split(['?', '#']).next().unwrap_or_default();
    sanitize(&path.trim_end_matches('/').replace('/', "-"))
}

pub(crate) fn account(directory_url: &str, email: Option<&str>, extension: &str) -> String {
    let authority = authority_segment(directory_url);
    let email = email.map_or_else(|| "default".to_owned(), sanitize);
    let user = email.split('@').next().filter(|user| !user.is_empty());
    let user = user.unwrap_or("default");
    format!("acme/{authority}/users/{email}/{user}.{extension}")
}

pub(crate) fn challenge_tokens(directory_url: &str) -> String {
    format!("acme/{}/challenge_tokens", authority_segment(directory_url))
}

pub(crate) fn challenge_token(directory_url: &str, token: &str) -> String {
    format!("{}/{}.json", challenge_tokens(directory_url), token)
}

pub(crate) fn certificate(directory_url: &str, name: &CertificateName, extension: &str) -> String {
    let (authority, name) = (authority_segment(directory_url), sanitize(name.as_str()));
    format!("certificates/{authority}/{name}/{name}.{extension}")
}

/// The lock under which a certificate is ordered.
pub(crate) fn certificate_lock(name: &CertificateName) -> String {
    format!("issue_cert_{}", sanitize(name.as_str()))
}

/// Turns a text into one segment of a key, by certmagic's rules.
fn sanitize(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for character in text.trim().to_lowercase().chars() {
        match character {
            ' ' => safe.push('_'),
            '+' => safe.push_str("_plus_"),
            '*' => safe.push_str("wildcard_"),
            ':' => safe.push('-'),
            '.' if safe.ends_with('.') => {}
            'a'..='z' | '0'..='9' | '_' | '-' | '.' | '@' => safe.push(character),
            _ => {}
        }
    }
    shorten(safe)
}

/// Shortens a segment that a file name with prefix and extension would be too long for.
fn shorten(segment: String) -> String {
    if segment.len() <= MAX_SEGMENT_BYTES {
        return segment;
    }
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, segment.as_bytes());
    let digest = digest.as_ref()[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"));
    let digest: String = digest.collect();
    format!("{}_{digest}", &segment[..MAX_SEGMENT_BYTES - 33])
}

/// File names have 255 bytes at most; prefixes and extensions take up to 50.
const MAX_SEGMENT_BYTES: usize = 200;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_certmagic() {
        let url = "https://acme-v02.api.letsencrypt.org/directory";
        let name = |text| CertificateName::parse(text).unwrap();
        let folder = "acme-v02.api.letsencrypt.org-directory";
        assert_eq!(authority_segment(url), folder);
        assert_eq!(
            authority_segment("https://localhost:14000/dir/"),
            "localhost-14000-dir"
        );
        assert_eq!(
            certificate(url, &name("*.Example.com"), "crt"),
            format!("certificates/{folder}/wildcard_.example.com/wildcard_.example.com.crt")
        );
        assert_eq!(
            certificate(url, &name("2001:db8::1"), "key"),
            format!("certificates/{folder}/2001-db8--1/2001-db8--1.key")
        );
        assert_eq!(
            account(url, Some("Ops+tls@Example.com"), "json"),
            format!("acme/{folder}/users/ops_plus_tls@example.com/ops_plus_tls.json")
        );
        assert_eq!(
            account(url, None, "key"),
            format!("acme/{folder}/users/default/default.key")
        );
    }

    #[test]
    fn the_longest_names_have_short_and_different_keys() {
        let long = |last| name_of_length(253, last);
        let keys = ['a', 'b'].map(|last| certificate("https://ca/dir", &long(last), "json"));
        assert_ne!(keys[0], keys[1]);
        let longest = keys[0].split('/').map(str::len).max();
        assert_eq!(longest, Some(MAX_SEGMENT_BYTES + ".json".len()));
    }

    fn name_of_length(length: usize, last: char) -> CertificateName {
        let mut text = "a234567890.".repeat(length / 11 + 1);
        text.truncate(length - 1);
        text.push(last);
        CertificateName::parse(&text).unwrap()
    }

    #[test]
    fn a_key_cannot_leave_its_folder() {
        for text in ["../../etc", "a/../b", "..", "a\0b", "a\\b"] {
            let safe = sanitize(text);
            assert!(
                !safe.contains("..") && !safe.contains(['/', '\0', '\\']),
                "{safe}"
            );
        }
    }
}
