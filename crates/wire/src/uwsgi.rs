//! uwsgi requests (uWSGI documentation, "The uwsgi Protocol"): one packet of variables, then the
//! body.
//!
//! The relay of an upstream writes the variables through [`UwsgiVariableWriter`], then the body.
//! The response is plain HTTP until the connection closes; `penstock_http` parses it.

use crate::gateway::{EncodeError, VariableWriter};

/// Writes the variables of one request.
#[derive(Debug)]
pub struct UwsgiVariableWriter<'o> {
    out: &'o mut Vec<u8>,
    start: usize,
    modifier1: u8,
    is_too_large: bool,
}

impl<'o> UwsgiVariableWriter<'o> {
    /// Opens a request at the end of `out`. `modifier1` selects the handler: 0 a WSGI application,
    /// 7 Rack, 5 PSGI, 9 CGI, 14 PHP.
    pub fn new(out: &'o mut Vec<u8>, modifier1: u8) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0; HEADER_LEN]);
        Self {
            out,
            start,
            modifier1,
            is_too_large: false,
        }
    }

    /// Closes the variables.
    ///
    /// # Errors
    /// [`EncodeError::TooLarge`] when they have more than 65,535 bytes; `out` is unchanged.
    pub fn finish(self) -> Result<(), EncodeError> {
        let len = u16::try_from(self.out.len() - self.start - HEADER_LEN);
        let (Ok(len), false) = (len, self.is_too_large) else {
            self.out.truncate(self.start);
            return Err(EncodeError::TooLarge);
        };
        let [low, high] = len.to_le_bytes();
        self.out[self.start..self.start + HEADER_LEN].copy_from_slice(&[
            self.modifier1,
            low,
            high,
            0,
        ]);
        Ok(())
    }

    fn push(&mut self, text: &[u8]) {
        match u16::try_from(text.len()) {
            Ok(len) => {
                self.out.extend_from_slice(&len.to_le_bytes());
                self.out.extend_from_slice(text);
            }
            Err(_) => self.is_too_large = true,
        }
    }
}

impl VariableWriter for UwsgiVariableWriter<'_> {
    fn push_variable(&mut self, name: &[u8], value: &[u8]) {
        self.push(name);
        self.push(value);
    }
}

const HEADER_LEN: usize = 4;

#[cfg(test)]
mod tests {
    use super::*;

    fn request(modifier1: u8, pairs: &[(&str, &str)]) -> Result<Vec<u8>, EncodeError> {
        let mut out = b"before".to_vec();
        let mut writer = UwsgiVariableWriter::new(&mut out, modifier1);
        for (name, value) in pairs {
            writer.push_variable(name.as_bytes(), value.as_bytes());
        }
        match writer.finish() {
            Ok(()) => Ok(out.split_off(6)),
            Err(error) => {
                assert_eq!(out, b"before");
                Err(error)
            }
        }
    }

    #[test]
    fn writes_lengths_in_little_endian() {
        assert_eq!(
            request(7, &[("PATH_INFO", "/a"), ("QUERY_STRING", "")]).unwrap(),
            b"\x07\x1f\x00\x00\x09\x00PATH_INFO\x02\x00/a\x0c\x00QUERY_STRING\x00\x00"
        );
        assert_eq!(request(0, &[]).unwrap(), [0; 4]);
    }

    #[test]
    fn takes_what_sixteen_bits_can_count_and_no_more() {
        // A name of one byte and two lengths come with the value.
        let full = "x".repeat(65_535 - 5);
        let bytes = request(0, &[("A", &full)]).unwrap();
        assert_eq!(
            (bytes.len(), &bytes[..4]),
            (4 + 65_535, &[0, 0xff, 0xff, 0][..])
        );
        for (what, pairs) in [
            ("one byte more", [("AB", full.as_str()), ("", "")]),
            ("a long value", [("A", &"x".repeat(65_536)), ("", "")]),
            ("a long name", [(&"x".repeat(70_000), ""), ("", "")]),
            (
                "two halves",
                [("A", &full[..40_000]), ("B", &full[..40_000])],
            ),
        ] {
            assert_eq!(request(0, &pairs), Err(EncodeError::TooLarge), "{what}");
        }
    }
}
