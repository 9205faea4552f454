//! The certificate of a client, as applications and servers behind get it.
//!
//! `tls` verifies it in the handshake and reads its facts once for a connection. Environments get
//! variables with the names of Apache and nginx, HTTP servers get fields. A request without TLS
//! passes here for one comparison.
//!
//! # Invariants
//! - A client never sets these values: `field_policy` drops its own `X-Client-Cert*`.
//! - No value has a control character, so none can end a field or a variable.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

use crate::TlsInfo;

/// What is known about the client of a session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum ClientVerification {
    /// The site asks for no certificate.
    #[default]
    NotRequested,
    /// The client has sent none, and need not.
    NotSent,
    /// It has sent one, and has proved that it has the key. An authority of the site has signed it.
    Verified(Box<ClientCertificate>),
}

/// The facts of a verified certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClientCertificate {
    /// The subject as a text of RFC 4514: `CN=anna,O=Example`.
    pub subject: Box<str>,
    /// The issuer, in the same form.
    pub issuer: Box<str>,
    /// The serial number in upper-case hexadecimal digits.
    pub serial: Box<str>,
    /// The SHA-256 of the certificate in lower-case hexadecimal digits.
    pub fingerprint: Box<str>,
}

/// The longest certificate that is passed on, in DER: encoded it has half as many bytes again, and
/// servers such as Gunicorn refuse a field of more than 8190.
const MAX_PASSED_BYTES: usize = 5 * 1024;

/// Length of the lines of PEM (RFC 7468 §2).
const PEM_LINE: usize = 64;

/// The names of fields for HTTP servers begin so.
pub const CLIENT_CERTIFICATE_FIELD_PREFIX: &str = "x-client-cert";

impl TlsInfo {
    /// Passes each variable of the session to `push`, with the names of Apache's `mod_ssl` and of
    /// Passenger, where the site asks for certificates also those of the client.
    pub fn for_each_variable(&self, mut push: impl FnMut(&[u8], &[u8])) {
        push(b"SSL_PROTOCOL", self.version.as_bytes());
        push(b"SSL_CIPHER", self.cipher.as_bytes());
        if let Some(name) = &self.server_name {
            push(b"SSL_TLS_SNI", name.as_bytes());
        }
        let names = [
            "SSL_CLIENT_VERIFY",
            "SSL_CLIENT_S_DN",
            "SSL_CLIENT_I_DN",
            "SSL_CLIENT_SERIAL",
            "SSL_CLIENT_FINGERPRINT",
            "SSL_CLIENT_CERT",
        ];
        self.for_each_client_fact(names, push);
    }

    /// Passes each field about the client for an HTTP server to `push`; none where the site asks for
    /// no certificate.
    pub fn for_each_client_field(&self, push: impl FnMut(&[u8], &[u8])) {
        let names = [
            "X-Client-Cert-Verify",
            "X-Client-Cert-Subject",
            "X-Client-Cert-Issuer",
            "X-Client-Cert-Serial",
            "X-Client-Cert-Fingerprint",
            "X-Client-Cert",
        ];
        self.for_each_client_fact(names, push);
    }

    /// `names` are those of the result, subject, issuer, serial number, fingerprint and certificate.
    fn for_each_client_fact(&self, names: [&str; 6], mut push: impl FnMut(&[u8], &[u8])) {
        let names = names.map(str::as_bytes);
        let certificate = match &self.client {
            ClientVerification::NotRequested => return,
            ClientVerification::NotSent => return push(names[0], b"NONE"),
            ClientVerification::Verified(certificate) => certificate,
        };
        push(names[0], b"SUCCESS");
        push(names[1], certificate.subject.as_bytes());
        push(names[2], certificate.issuer.as_bytes());
        push(names[3], certificate.serial.as_bytes());
        push(names[4], certificate.fingerprint.as_bytes());
        if let Some(der) = self.passed_client_chain().next() {
            push(names[5], escape_pem(&encode_pem(der)).as_bytes());
        }
    }

    /// The verified certificate, if there is one.
    #[must_use]
    pub fn client_certificate(&self) -> Option<&ClientCertificate> {
        match &self.client {
            ClientVerification::Verified(certificate) => Some(certificate),
            ClientVerification::NotRequested | ClientVerification::NotSent => None,
        }
    }

    /// The certificates that the client has sent, its own first; none if it is not verified, or if
    /// they are too long to be passed on.
    pub fn passed_client_chain(&self) -> impl Iterator<Item = &[u8]> {
        let chain = match self.client {
            ClientVerification::Verified(_) => &*self.peer_certificates,
            ClientVerification::NotRequested | ClientVerification::NotSent => &[],
        };
        let mut total = 0;
        chain.iter().map(|der| &**der).take_while(move |der| {
            total += der.len();
            total <= MAX_PASSED_BYTES
        })
    }
}

/// A certificate in PEM (RFC 7468 §5).
#[must_use]
pub fn encode_pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut pem = String::with_capacity(text.len() + text.len() / PEM_LINE + 64);
    pem.push_str("-----BEGIN CERTIFICATE-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(PEM_LINE));
        pem.push_str(line);
        pem.push('\n');
        rest = after;
    }
    pem.push_str("-----END CERTIFICATE-----\n");
    pem
}

/// PEM with each byte but letters, digits and `-._~` as `%XX`: the form of nginx'
/// `$ssl_client_escaped_cert`, on one line.
fn escape_pem(pem: &str) -> String {
    let mut text = String::with_capacity(pem.len() + pem.len() / 8);
    for c in pem.chars() {
        match c {
            c if c.is_ascii_alphanumeric() => text.push(c),
            '-' => text.push('-'),
            '+' => text.push_str("%2B"),
            '/' => text.push_str("%2F"),
            '=' => text.push_str("%3D"),
            ' ' => text.push_str("%20"),
            // PEM has no other.
            _ => text.push_str("%0A"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session(client: ClientVerification, der: &[u8]) -> TlsInfo {
        TlsInfo {
            version: "TLSv1.3",
            cipher: "AES_128_GCM_SHA256".into(),
            server_name: Some("a.test".into()),
            peer_certificates: [der.into()].into(),
            client,
            ..TlsInfo::default()
        }
    }

    fn verified() -> ClientVerification {
        ClientVerification::Verified(Box::new(ClientCertificate {
            subject: "CN=anna".into(),
            issuer: "CN=Clients".into(),
            serial: "0A".into(),
            fingerprint: "ab12".into(),
        }))
    }

    fn variables(session: &TlsInfo) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        session.for_each_variable(|name, value| found.push((text(name), text(value))));
        found
    }

    #[test]
    fn variables_have_the_session_and_what_the_client_has_proved() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let base = [
            pair("SSL_PROTOCOL", "TLSv1.3"),
            pair("SSL_CIPHER", "AES_128_GCM_SHA256"),
            pair("SSL_TLS_SNI", "a.test"),
        ];
        assert_eq!(
            variables(&session(ClientVerification::NotRequested, b"")),
            base
        );
        let none = variables(&session(ClientVerification::NotSent, b""));
        assert_eq!(none[3..], [pair("SSL_CLIENT_VERIFY", "NONE")]);
        let all = variables(&session(verified(), &[0xfb, 0xff, 0xfe, 0x00]));
        assert_eq!(
            all[3..],
            [
                pair("SSL_CLIENT_VERIFY", "SUCCESS"),
                pair("SSL_CLIENT_S_DN", "CN=anna"),
                pair("SSL_CLIENT_I_DN", "CN=Clients"),
                pair("SSL_CLIENT_SERIAL", "0A"),
                pair("SSL_CLIENT_FINGERPRINT", "ab12"),
                pair(
                    "SSL_CLIENT_CERT",
                    "-----BEGIN%20CERTIFICATE-----%0A%2B%2F%2F%2BAA%3D%3D%0A\
                     -----END%20CERTIFICATE-----%0A"
                ),
            ]
        );
    }

    #[test]
    fn a_certificate_that_is_too_long_is_left_out() {
        let long = vec![7; MAX_PASSED_BYTES + 1];
        let names: Vec<_> = variables(&session(verified(), &long));
        assert!(names.iter().all(|(name, _)| name != "SSL_CLIENT_CERT"));
        assert!(
            names
                .iter()
                .any(|(name, _)| name == "SSL_CLIENT_FINGERPRINT")
        );
        let fits = session(verified(), &long[1..]);
        assert_eq!(fits.passed_client_chain().count(), 1);
        let unverified = session(ClientVerification::NotSent, b"der");
        assert_eq!(unverified.passed_client_chain().count(), 0);
    }

    #[test]
    fn pem_has_lines_of_64_characters() {
        let pem = encode_pem(&[7; 60]);
        let lengths: Vec<_> = pem.lines().map(str::len).collect();
        assert_eq!(lengths, [27, 64, 16, 25]);
        assert!(pem.ends_with("-----END CERTIFICATE-----\n"));
    }
}
