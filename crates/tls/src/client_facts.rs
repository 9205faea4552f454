//! The facts of a client's certificate that applications get, read once for a connection.
//!
//! Pure: DER in, texts out. `handshake` calls it when rustls has verified the certificate.
//!
//! # Invariants
//! - A name in a certificate cannot end a field or a variable: control characters are escaped.

use std::fmt::Write;

use aws_lc_rs::digest;
use penstock_exchange::ClientCertificate;
use rustls::pki_types::CertificateDer;
use x509_parser::asn1_rs::ToDer;
use x509_parser::x509::{AttributeTypeAndValue, RelativeDistinguishedName, X509Name};

use crate::x509::{InvalidCertificate, parse};

/// Reads the facts of a verified certificate.
///
/// # Errors
/// It has a form that rustls accepts and the reader does not.
pub(crate) fn read_client_certificate(der: &[u8]) -> Result<ClientCertificate, InvalidCertificate> {
    let certificate = CertificateDer::from(der);
    let certificate = parse(&certificate)?;
    let fingerprint = digest::digest(&digest::SHA256, der);
    Ok(ClientCertificate {
        subject: format_name(certificate.subject()).into(),
        issuer: format_name(certificate.issuer()).into(),
        serial: format_serial(certificate.tbs_certificate.raw_serial()).into(),
        fingerprint: format_hex(fingerprint.as_ref(), false).into(),
    })
}

/// A name as text (RFC 4514 §2): the last part first, as OpenSSL writes it with `-nameopt RFC2253`.
fn format_name(name: &X509Name<'_>) -> String {
    let mut parts: Vec<String> = name.iter_rdn().map(format_part).collect();
    parts.reverse();
    parts.join(",")
}

fn format_part(part: &RelativeDistinguishedName<'_>) -> String {
    let attributes: Vec<String> = part.iter().map(format_attribute).collect();
    attributes.join("+")
}

fn format_attribute(attribute: &AttributeTypeAndValue<'_>) -> String {
    let oid = attribute.attr_type().to_id_string();
    let known = ATTRIBUTE_NAMES.iter().find(|(id, _)| *id == oid);
    match (known, attribute.as_str()) {
        (Some((_, name)), Ok(value)) => format!("{name}={}", escape_value(value)),
        // Of an unknown kind, or in an encoding that is no Unicode (RFC 4514 §2.4).
        (known, _) => {
            let der = attribute.attr_value().to_der_vec().unwrap_or_default();
            let name = known.map_or(&*oid, |(_, name)| name);
            format!("{name}=#{}", format_hex(&der, true))
        }
    }
}

/// The names of RFC 4514 §3, and of OpenSSL for the others that certificates have.
const ATTRIBUTE_NAMES: [(&str, &str); 14] = [
    ("2.5.4.3", "CN"),
    ("2.5.4.4", "SN"),
    ("2.5.4.5", "serialNumber"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "street"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("2.5.4.12", "title"),
    ("2.5.4.42", "GN"),
    ("0.9.2342.19200300.100.1.1", "UID"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("1.2.840.113549.1.9.1", "emailAddress"),
];

/// RFC 4514 §2.4. Spaces at the ends are in hexadecimal: a field loses them otherwise.
fn escape_value(value: &str) -> String {
    let last = value.len().saturating_sub(1);
    let mut text = String::with_capacity(value.len());
    for (at, c) in value.char_indices() {
        match c {
            // Writing to a String cannot fail.
            c if c.is_ascii_control() => drop(write!(text, "\\{:02X}", u32::from(c))),
            ' ' if at == 0 || at == last => text.push_str("\\20"),
            '#' if at == 0 => text.push_str("\\#"),
            ',' | '+' | '"' | '\\' | '<' | '>' | ';' => text.extend(['\\', c]),
            c => text.push(c),
        }
    }
    text
}

/// The number without the zero that keeps it positive.
fn format_serial(bytes: &[u8]) -> String {
    let bytes = match bytes {
        [0, rest @ ..] if !rest.is_empty() => rest,
        all => all,
    };
    format_hex(bytes, true)
}

fn format_hex(bytes: &[u8], is_upper: bool) -> String {
    let digits: &[u8; 16] = match is_upper {
        true => b"0123456789ABCDEF",
        false => b"0123456789abcdef",
    };
    let halves = bytes.iter().flat_map(|byte| [byte >> 4, byte & 0x0f]);
    halves
        .map(|half| char::from(digits[usize::from(half)]))
        .collect()
}

#[cfg(test)]
mod tests {
    use rcgen::{DnType, DnValue, SerialNumber};

    use super::*;
    use crate::testing::{TestAuthority, openssl, write};

    fn issue(subject: &[(DnType, DnValue)]) -> Vec<u8> {
        let authority = TestAuthority::new("Clients");
        let issued = authority.issue_with(&[], |params| {
            params.serial_number = Some(SerialNumber::from_slice(&[0xfe, 1]));
            params.distinguished_name = rcgen::DistinguishedName::new();
            for (kind, value) in subject {
                params.distinguished_name.push(kind.clone(), value.clone());
            }
        });
        let chain = crate::pem_file::certificates(issued.certificate.as_bytes());
        chain.unwrap()[0].to_vec()
    }

    fn subject_of(kind: DnType, value: &str) -> String {
        let der = issue(&[(kind, DnValue::Utf8String(value.to_owned()))]);
        read_client_certificate(&der).unwrap().subject.into()
    }

    #[test]
    fn a_name_is_written_as_openssl_writes_it() {
        let subject = [
            (DnType::CountryName, DnValue::Utf8String("DE".to_owned())),
            (
                DnType::OrganizationName,
                DnValue::Utf8String("A, B + C".to_owned()),
            ),
            (
                DnType::CommonName,
                DnValue::Utf8String("Änna \"x\" #1".to_owned()),
            ),
        ];
        let der = issue(&subject);
        let found = read_client_certificate(&der).unwrap();
        assert_eq!(&*found.subject, "CN=Änna \\\"x\\\" #1,O=A\\, B \\+ C,C=DE");
        assert_eq!((&*found.issuer, &*found.serial), ("CN=Clients", "FE01"));
        let dir = tempfile::tempdir().unwrap();
        let pem = penstock_exchange::client_certificate::encode_pem(&der);
        write(dir.path(), "client.pem", &pem);
        openssl(
            dir.path(),
            "x509 -in client.pem -noout -subject -serial -fingerprint -sha256 -nameopt \
             RFC2253,-esc_msb,utf8 -out facts",
        );
        let facts = crate::testing::read(dir.path(), "facts");
        let fingerprint = found.fingerprint.to_uppercase();
        let pairs = fingerprint.as_bytes().chunks(2);
        let pairs: Vec<_> = pairs
            .map(|pair| std::str::from_utf8(pair).unwrap())
            .collect();
        for expected in [
            format!("subject={}\n", found.subject),
            format!("serial={}\n", found.serial),
            format!("={}\n", pairs.join(":")),
        ] {
            assert!(facts.contains(&expected), "{expected} in {facts}");
        }
    }

    #[test]
    fn a_name_cannot_end_a_field() {
        for (value, expected) in [
            ("a\r\nX-Admin: 1", "CN=a\\0D\\0AX-Admin: 1"),
            ("a\0b", "CN=a\\00b"),
            (" a ", "CN=\\20a\\20"),
            ("#a", "CN=\\#a"),
            ("", "CN="),
        ] {
            assert_eq!(subject_of(DnType::CommonName, value), expected);
        }
    }

    #[test]
    fn unknown_attributes_are_numbers() {
        let kind = DnType::CustomDnType(vec![1, 2, 3, 4]);
        assert_eq!(subject_of(kind, "a"), "1.2.3.4=#0C0161");
    }

    #[test]
    fn what_is_no_certificate_has_no_facts() {
        assert_eq!(
            read_client_certificate(b"\x30\x00"),
            Err(InvalidCertificate)
        );
    }
}
