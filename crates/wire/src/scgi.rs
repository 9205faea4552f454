//! SCGI requests (the SCGI protocol by N. Schemenauer): a netstring of variables, then the body.
//!
//! The relay of an upstream writes the variables through [`ScgiVariableWriter`] and then a body of
//! exactly the announced length. The response is a CGI response until the connection closes:
//! [`cgi::CgiDecoder`](crate::cgi::CgiDecoder) decodes it.

use crate::gateway::{EncodeError, VariableWriter};

/// Writes the variables of one request. It writes `CONTENT_LENGTH` and `SCGI` itself, and skips
/// pairs of these names: the protocol demands the first before all others, and each only once.
#[derive(Debug)]
pub struct ScgiVariableWriter<'o> {
    out: &'o mut Vec<u8>,
    start: usize,
    has_nul: bool,
}

impl<'o> ScgiVariableWriter<'o> {
    /// Opens a request at the end of `out`, with a body of that many bytes (0 without one).
    pub fn new(out: &'o mut Vec<u8>, content_length: u64) -> Self {
        let start = out.len();
        out.extend_from_slice(&[0; LENGTH_PREFIX_LEN]);
        let mut writer = Self {
            out,
            start,
            has_nul: false,
        };
        let mut digits = itoa::Buffer::new();
        writer.push(b"CONTENT_LENGTH", digits.format(content_length).as_bytes());
        writer.push(b"SCGI", b"1");
        writer
    }

    /// Closes the variables.
    ///
    /// # Errors
    /// [`EncodeError::NulInText`]: it would be parsed as a separator. `out` is unchanged.
    pub fn finish(self) -> Result<(), EncodeError> {
        if self.has_nul {
            self.out.truncate(self.start);
            return Err(EncodeError::NulInText);
        }
        let len = self.out.len() - self.start - LENGTH_PREFIX_LEN;
        let mut digits = itoa::Buffer::new();
        let prefix = digits.format(len).bytes().chain([b':']);
        self.out
            .splice(self.start..self.start + LENGTH_PREFIX_LEN, prefix);
        self.out.push(b',');
        Ok(())
    }

    fn push(&mut self, name: &[u8], value: &[u8]) {
        for text in [name, value] {
            self.has_nul |= memchr::memchr(0, text).is_some();
            self.out.extend_from_slice(text);
            self.out.push(0);
        }
    }
}

impl VariableWriter for ScgiVariableWriter<'_> {
    fn push_variable(&mut self, name: &[u8], value: &[u8]) {
        if name != b"CONTENT_LENGTH" && name != b"SCGI" {
            self.push(name, value);
        }
    }
}

/// Room for the length of most requests, `NNNN:`, so that nothing has to be moved.
const LENGTH_PREFIX_LEN: usize = 5;

#[cfg(test)]
mod tests {
    use super::*;

    fn request(length: u64, pairs: &[(&str, &str)]) -> Result<Vec<u8>, EncodeError> {
        let mut out = b"before ".to_vec();
        let mut writer = ScgiVariableWriter::new(&mut out, length);
        for (name, value) in pairs {
            writer.push_variable(name.as_bytes(), value.as_bytes());
        }
        let done = writer.finish();
        match done {
            Ok(()) => Ok(out.split_off(7)),
            Err(error) => {
                assert_eq!(out, b"before ");
                Err(error)
            }
        }
    }

    #[test]
    fn writes_the_example_of_the_specification() {
        let pairs = [("REQUEST_METHOD", "POST"), ("REQUEST_URI", "/deepthought")];
        assert_eq!(
            request(27, &pairs).unwrap(),
            b"70:CONTENT_LENGTH\x0027\0SCGI\x001\0REQUEST_METHOD\0POST\0REQUEST_URI\0/deepthought\0,"
        );
    }

    #[test]
    fn announces_a_body_of_no_bytes() {
        assert_eq!(
            request(0, &[]).unwrap(),
            b"24:CONTENT_LENGTH\x000\0SCGI\x001\0,"
        );
    }

    #[test]
    fn says_its_own_variables_once() {
        let pairs = [("CONTENT_LENGTH", "5"), ("SCGI", "2"), ("A", "")];
        assert_eq!(
            request(4, &pairs).unwrap(),
            b"27:CONTENT_LENGTH\x004\0SCGI\x001\0A\0\0,"
        );
    }

    #[test]
    fn measures_requests_of_every_size() {
        for len in [1, 60, 70, 940, 980, 9_900, 99_900, 1 << 20] {
            let value = "x".repeat(len);
            let bytes = request(0, &[("A", &value)]).unwrap();
            let colon = bytes.iter().position(|&byte| byte == b':').unwrap();
            let declared_len: usize = std::str::from_utf8(&bytes[..colon])
                .unwrap()
                .parse()
                .unwrap();
            assert_eq!(colon + 1 + declared_len + 1, bytes.len(), "{len}");
            assert_eq!(bytes.last(), Some(&b','), "{len}");
            assert!(bytes[colon + 1..].starts_with(b"CONTENT_LENGTH\0"), "{len}");
        }
    }

    #[test]
    fn refuses_a_zero_byte_in_a_name_or_value() {
        for pair in [("A\0B", "c"), ("A", "b\0HTTPS\0on")] {
            assert_eq!(request(0, &[pair]), Err(EncodeError::NulInText));
        }
    }
}
