//! Encodes the environment of one request in the form that its interpreter parses fastest.
//!
//! Called by `apps` for each request, through [`crate::encode_request`]; allocates nothing but room
//! in the output. Python gets a `marshal` dictionary: one call in C builds the whole environment.
//! For Ruby a list of strings joined by NUL is faster: `Marshal` interns the name of every pair,
//! and measured 1.5 us per request more than `split` and the worker's table of names. Text is
//! latin-1: one character per byte (PEP 3333), binary strings in Ruby.

pub mod asgi;

use crate::WireError;

/// The interpreter that parses the environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    Python,
    Ruby,
}

/// Variables that nearly every request has. In Ruby's form their values come first, in this order
/// and without their names; an empty one is absent.
pub const COMMON_VARIABLES: [&str; 9] = [
    "REQUEST_METHOD",
    "PATH_INFO",
    "REQUEST_URI",
    "SERVER_NAME",
    "SERVER_PORT",
    "REMOTE_ADDR",
    "REMOTE_PORT",
    "HTTP_HOST",
    "HTTP_X_REQUEST_START",
];

/// The same names as [`write_python_str`] writes them.
const ENCODED_COMMON_VARIABLES: [&[u8]; COMMON_VARIABLES.len()] = [
    b"z\x0eREQUEST_METHOD",
    b"z\x09PATH_INFO",
    b"z\x0bREQUEST_URI",
    b"z\x0bSERVER_NAME",
    b"z\x0bSERVER_PORT",
    b"z\x0bREMOTE_ADDR",
    b"z\x0bREMOTE_PORT",
    b"z\x09HTTP_HOST",
    b"z\x14HTTP_X_REQUEST_START",
];

/// Writes one environment to the end of a buffer.
///
/// Order of calls: [`push_common_variables`](Self::push_common_variables) at most once and first,
/// pairs in any order, then [`finish`](Self::finish). The last value of a repeated key counts, as
/// in any dictionary.
#[derive(Debug)]
pub struct EnvironEncoder<'a> {
    out: &'a mut Vec<u8>,
    dialect: Dialect,
    start: usize,
    /// Strings written so far, in Ruby's form.
    string_count: usize,
}

impl<'a> EnvironEncoder<'a> {
    /// Opens an environment at the end of `out`.
    pub fn new(out: &'a mut Vec<u8>, dialect: Dialect) -> Self {
        if dialect == Dialect::Python {
            out.push(b'{');
        }
        let start = out.len();
        Self {
            out,
            dialect,
            start,
            string_count: 0,
        }
    }

    /// The dialect of this environment.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Adds the variables of [`COMMON_VARIABLES`], in that order.
    pub fn push_common_variables(&mut self, values: &[&[u8]; COMMON_VARIABLES.len()]) {
        debug_assert_eq!(self.string_count, 0, "the usual variables come first");
        match self.dialect {
            Dialect::Python => {
                for (key, value) in ENCODED_COMMON_VARIABLES.iter().zip(values) {
                    if !value.is_empty() {
                        self.out.extend_from_slice(key);
                        write_python_str(self.out, value);
                    }
                }
            }
            Dialect::Ruby => values.iter().for_each(|value| self.push_string(value)),
        }
    }

    /// Adds one variable.
    pub fn push_variable(&mut self, key: &[u8], value: &[u8]) {
        match self.dialect {
            // Not the interned forms, `Z` and `A`: CPython 3.12 and later keep interned text for
            // ever, and clients choose names. Also measured 0.1 us per request faster.
            Dialect::Python => {
                write_python_str(self.out, key);
                write_python_str(self.out, value);
            }
            Dialect::Ruby => {
                self.ensure_common_variables();
                self.push_string(key);
                self.push_string(value);
            }
        }
    }

    /// Closes the environment.
    ///
    /// # Errors
    /// [`WireError::NulInText`]: it would be parsed as a separator; the output is then useless.
    pub fn finish(mut self) -> Result<(), WireError> {
        match self.dialect {
            Dialect::Python => self.out.push(b'0'),
            Dialect::Ruby => {
                self.ensure_common_variables();
                let borders = memchr::memchr_iter(0, &self.out[self.start..]);
                if borders.count() + 1 != self.string_count {
                    return Err(WireError::NulInText);
                }
            }
        }
        Ok(())
    }

    fn ensure_common_variables(&mut self) {
        if self.string_count == 0 {
            self.push_common_variables(&[b""; COMMON_VARIABLES.len()]);
        }
    }

    fn push_string(&mut self, text: &[u8]) {
        if self.string_count > 0 {
            self.out.push(0);
        }
        self.string_count += 1;
        self.out.extend_from_slice(text);
    }
}

/// Writes `str`: as short or long ASCII when it is ASCII, else as UTF-8.
fn write_python_str(out: &mut Vec<u8>, text: &[u8]) {
    if is_ascii(text) {
        write_python_ascii_len(out, text.len());
        out.extend_from_slice(text);
        return;
    }
    let wide = text.iter().filter(|byte| **byte >= 0x80).count();
    out.push(b'u');
    out.extend_from_slice(&marshal_len(text.len() + wide).to_le_bytes());
    for byte in text {
        if *byte < 0x80 {
            out.push(*byte);
        } else {
            out.extend_from_slice(&[0xc0 | (byte >> 6), 0x80 | (byte & 0x3f)]);
        }
    }
}

#[inline]
fn write_python_ascii_len(out: &mut Vec<u8>, len: usize) {
    if let Ok(len) = u8::try_from(len) {
        out.extend_from_slice(&[b'z', len]);
    } else {
        out.push(b'a');
        out.extend_from_slice(&marshal_len(len).to_le_bytes());
    }
}

/// As the standard library does, without its costs for short text.
fn is_ascii(text: &[u8]) -> bool {
    let (words, rest) = text.as_chunks::<8>();
    let words = words
        .iter()
        .fold(0, |all, word| all | u64::from_le_bytes(*word));
    let rest = rest.iter().fold(0, |all, byte| all | byte);
    words & 0x8080_8080_8080_8080 == 0 && rest < 0x80
}

/// A length in `marshal` form. Anything over the frame bound makes `encode_request` fail in the
/// end, so a clamped value never leaves this process.
fn marshal_len(len: usize) -> i32 {
    i32::try_from(len).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encode(dialect: Dialect, fill: impl FnOnce(&mut EnvironEncoder<'_>)) -> Vec<u8> {
        let mut out = Vec::new();
        let mut encoder = EnvironEncoder::new(&mut out, dialect);
        fill(&mut encoder);
        encoder.finish().unwrap();
        out
    }

    #[test]
    fn writes_nothing_but_the_frame_for_an_empty_environment() {
        assert_eq!(encode(Dialect::Python, |_| ()), b"{0");
        assert_eq!(
            encode(Dialect::Ruby, |_| ()),
            [0; COMMON_VARIABLES.len() - 1]
        );
    }

    #[test]
    fn usual_variables_are_named_for_python_and_placed_for_ruby() {
        let values: [&[u8]; 9] = [b"GET", b"/", b"/", b"a", b"80", b"::1", b"", b"a", b"t=1"];
        let python = encode(Dialect::Python, |e| e.push_common_variables(&values));
        let pairs = encode(Dialect::Python, |e| {
            for (key, value) in COMMON_VARIABLES
                .iter()
                .zip(values)
                .filter(|(_, v)| !v.is_empty())
            {
                e.push_variable(key.as_bytes(), value);
            }
        });
        assert_eq!(python, pairs);
        let ruby = encode(Dialect::Ruby, |e| {
            e.push_common_variables(&values);
            e.push_variable(b"K", b"v");
        });
        assert_eq!(ruby, b"GET\0/\0/\0a\x0080\0::1\0\0a\0t=1\0K\0v");
    }

    #[test]
    fn names_that_are_encoded_already_are_the_same() {
        for (name, encoded) in COMMON_VARIABLES.iter().zip(ENCODED_COMMON_VARIABLES) {
            let mut out = Vec::new();
            write_python_str(&mut out, name.as_bytes());
            assert_eq!(out, encoded, "{name}");
        }
    }

    #[test]
    fn ascii_is_told_at_every_place() {
        for len in 0..40 {
            assert!(is_ascii(&vec![0x7f; len]));
            for at in 0..len {
                let mut text = vec![b'a'; len];
                text[at] = 0x80;
                assert!(!is_ascii(&text), "{at} of {len}");
            }
        }
    }

    #[test]
    fn refuses_a_nul_that_would_be_a_border() {
        let mut out = Vec::new();
        let mut encoder = EnvironEncoder::new(&mut out, Dialect::Ruby);
        encoder.push_variable(b"K", b"a\0b");
        assert_eq!(encoder.finish(), Err(WireError::NulInText));
    }
}
