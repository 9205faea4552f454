//! Reads a request's method and path back from its environment, for log lines about a stuck worker.
//!
//! The slot driver keeps nothing but the frame of a request, and parses it only when needed.
//!
//! # Invariants
//!
//! - Any bytes give a result without control characters (the target is as the client sent it,
//!   percent-encoded).

use crate::environ::{COMMON_VARIABLES, Dialect};

/// Returns the method and path (without the query) in an encoded environment, if it has them.
#[must_use]
pub fn read_method_and_path(dialect: Dialect, environ: &[u8]) -> Option<(String, String)> {
    let (method, target) = match dialect {
        Dialect::Ruby => ruby_method_and_path(environ)?,
        _ => python_method_and_path(environ)?,
    };
    let path = target.split(|byte| *byte == b'?').next()?;
    let plain = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        text.chars().filter(|c| !c.is_control()).collect::<String>()
    };
    (!method.is_empty()).then(|| (plain(method), plain(path)))
}

/// The common variables come first, in their order.
fn ruby_method_and_path(environ: &[u8]) -> Option<(&[u8], &[u8])> {
    let index_of = |name| COMMON_VARIABLES.iter().position(|usual| *usual == name);
    let mut values = environ.split(|byte| *byte == 0);
    let method = values.clone().nth(index_of("REQUEST_METHOD")?)?;
    Some((method, values.nth(index_of("REQUEST_URI")?)?))
}

/// One `marshal` dictionary of text.
fn python_method_and_path(environ: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut rest = environ.strip_prefix(b"{")?;
    let (mut method, mut target) = (None, None);
    while method.is_none() || target.is_none() {
        let key = read_python_str(&mut rest)?;
        let value = read_python_str(&mut rest)?;
        match key {
            b"REQUEST_METHOD" => method = Some(value),
            b"REQUEST_URI" => target = Some(value),
            _ => {}
        }
    }
    method.zip(target)
}

fn read_python_str<'b>(rest: &mut &'b [u8]) -> Option<&'b [u8]> {
    let (kind, after) = rest.split_first()?;
    let (len, after) = match kind {
        b'z' => {
            let (len, after) = after.split_first()?;
            (usize::from(*len), after)
        }
        b'a' | b'u' => {
            let (len, after) = after.split_first_chunk::<4>()?;
            (usize::try_from(u32::from_le_bytes(*len)).ok()?, after)
        }
        _ => return None,
    };
    let (text, after) = after.split_at_checked(len)?;
    *rest = after;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environ::EnvironEncoder;

    fn environ(dialect: Dialect, target: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        let mut encoder = EnvironEncoder::new(&mut out, dialect);
        let values: [&[u8]; 9] = [
            b"POST", b"/a b", target, b"host", b"80", b"::1", b"", b"host", b"t=1",
        ];
        encoder.push_common_variables(&values);
        encoder.push_variable(b"HTTP_X", b"y");
        encoder.finish().unwrap();
        out
    }

    #[test]
    fn reads_method_and_path_without_the_query() {
        let long = [b"/".as_slice(), &[b'x'; 300]].concat();
        let rows: [(&[u8], &[u8]); 4] = [
            (b"/a%20b?secret=1", b"/a%20b"),
            (b"/", b"/"),
            (&long, &long),
            ("/\u{e9}\u{1b}[2J".as_bytes(), "/\u{e9}[2J".as_bytes()),
        ];
        for dialect in [Dialect::Python, Dialect::Ruby] {
            for (target, path) in rows {
                let found = read_method_and_path(dialect, &environ(dialect, target))
                    .map(|(m, p)| m + " " + &p);
                // Python's text is latin-1 encoded as UTF-8.
                if target.is_ascii() || dialect == Dialect::Ruby {
                    let path = String::from_utf8_lossy(path);
                    assert_eq!(found, Some(format!("POST {path}")), "{dialect:?}");
                }
            }
        }
    }

    #[test]
    fn bytes_of_any_kind_give_an_answer() {
        for dialect in [Dialect::Python, Dialect::Ruby] {
            let whole = environ(dialect, b"/path");
            for cut in 0..whole.len() {
                let _ = read_method_and_path(dialect, &whole[..cut]);
            }
            for garbage in [&b"{z\xff"[..], b"{a\xff\xff\xff\xff", b"", b"{", b"\0\0\0"] {
                assert_eq!(read_method_and_path(dialect, garbage), None, "{garbage:?}");
            }
        }
    }
}
