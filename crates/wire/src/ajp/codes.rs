//! The AJP13 codes of methods and fields (ajpv13a, "Request Packet Structure" and "Response Packet
//! Structure").
//!
//! Used by the encoder of requests and the decoder of response heads. The tables follow the
//! specification line by line.

/// The code of a method; `None` for one that is sent by name.
pub(super) fn method_code(name: &str) -> Option<u8> {
    let index = METHODS.iter().position(|known| *known == name)?;
    u8::try_from(index + 1).ok()
}

/// The code of a request field; `None` for one that is sent by name.
pub(super) fn request_field_code(name: &str) -> Option<u16> {
    let index = REQUEST_FIELDS
        .iter()
        .position(|known| known.eq_ignore_ascii_case(name))?;
    u16::try_from(index + 1).ok().map(|index| 0xa000 | index)
}

/// The name for a response field's code.
pub(super) fn response_field_name(code: u16) -> Option<&'static str> {
    let index = usize::from(code & 0xff).checked_sub(1)?;
    RESPONSE_FIELDS.get(index).copied()
}

/// From 1 on.
const METHODS: [&str; 27] = [
    "OPTIONS",
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "TRACE",
    "PROPFIND",
    "PROPPATCH",
    "MKCOL",
    "COPY",
    "MOVE",
    "LOCK",
    "UNLOCK",
    "ACL",
    "REPORT",
    "VERSION-CONTROL",
    "CHECKIN",
    "CHECKOUT",
    "UNCHECKOUT",
    "SEARCH",
    "MKWORKSPACE",
    "UPDATE",
    "LABEL",
    "MERGE",
    "BASELINE-CONTROL",
    "MKACTIVITY",
];

/// From 0xA001 on.
const REQUEST_FIELDS: [&str; 14] = [
    "Accept",
    "Accept-Charset",
    "Accept-Encoding",
    "Accept-Language",
    "Authorization",
    "Connection",
    "Content-Type",
    "Content-Length",
    "Cookie",
    "Cookie2",
    "Host",
    "Pragma",
    "Referer",
    "User-Agent",
];

/// From 0xA001 on.
const RESPONSE_FIELDS: [&str; 11] = [
    "Content-Type",
    "Content-Language",
    "Content-Length",
    "Date",
    "Last-Modified",
    "Location",
    "Set-Cookie",
    "Set-Cookie2",
    "Servlet-Engine",
    "Status",
    "WWW-Authenticate",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_have_the_numbers_of_the_specification() {
        for (name, expected) in [
            ("OPTIONS", Some(1)),
            ("GET", Some(2)),
            ("HEAD", Some(3)),
            ("POST", Some(4)),
            ("PUT", Some(5)),
            ("DELETE", Some(6)),
            ("TRACE", Some(7)),
            ("PROPFIND", Some(8)),
            ("PROPPATCH", Some(9)),
            ("MKCOL", Some(10)),
            ("COPY", Some(11)),
            ("MOVE", Some(12)),
            ("LOCK", Some(13)),
            ("UNLOCK", Some(14)),
            ("ACL", Some(15)),
            ("REPORT", Some(16)),
            ("VERSION-CONTROL", Some(17)),
            ("CHECKIN", Some(18)),
            ("CHECKOUT", Some(19)),
            ("UNCHECKOUT", Some(20)),
            ("SEARCH", Some(21)),
            ("MKWORKSPACE", Some(22)),
            ("UPDATE", Some(23)),
            ("LABEL", Some(24)),
            ("MERGE", Some(25)),
            ("BASELINE-CONTROL", Some(26)),
            ("MKACTIVITY", Some(27)),
            ("PATCH", None),
            ("get", None),
            ("", None),
        ] {
            assert_eq!(method_code(name), expected, "{name}");
        }
    }

    #[test]
    fn request_fields_have_the_codes_of_the_specification() {
        for (name, expected) in [
            ("accept", Some(0xa001)),
            ("Accept-Charset", Some(0xa002)),
            ("Accept-Encoding", Some(0xa003)),
            ("Accept-Language", Some(0xa004)),
            ("Authorization", Some(0xa005)),
            ("Connection", Some(0xa006)),
            ("Content-Type", Some(0xa007)),
            ("CONTENT-LENGTH", Some(0xa008)),
            ("Cookie", Some(0xa009)),
            ("Cookie2", Some(0xa00a)),
            ("Host", Some(0xa00b)),
            ("Pragma", Some(0xa00c)),
            ("Referer", Some(0xa00d)),
            ("User-Agent", Some(0xa00e)),
            ("Accept-Ranges", None),
            ("", None),
        ] {
            assert_eq!(request_field_code(name), expected, "{name}");
        }
    }

    #[test]
    fn response_fields_have_the_codes_of_the_specification() {
        for (code, expected) in [
            (0xa000, None),
            (0xa001, Some("Content-Type")),
            (0xa002, Some("Content-Language")),
            (0xa003, Some("Content-Length")),
            (0xa004, Some("Date")),
            (0xa005, Some("Last-Modified")),
            (0xa006, Some("Location")),
            (0xa007, Some("Set-Cookie")),
            (0xa008, Some("Set-Cookie2")),
            (0xa009, Some("Servlet-Engine")),
            (0xa00a, Some("Status")),
            (0xa00b, Some("WWW-Authenticate")),
            (0xa00c, None),
            (0xa0ff, None),
        ] {
            assert_eq!(response_field_name(code), expected, "{code:#x}");
        }
    }
}
