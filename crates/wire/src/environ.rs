//! The CGI environment in the interpreter's own serialisation: Python `marshal`, Ruby `Marshal`.
//!
//! The front end knows the request already; writing it in the form that one C call of the worker
//! turns into a dictionary saves the worker from parsing anything. `apps` fills an
//! [`EnvironEncoder`] inside [`crate::encode_request`]; nothing is allocated but the output.
//!
//! Only forms that every supported version reads are written: marshal without references (any
//! CPython 3, checked on 3.8 to 3.13) and Marshal 4.8. Text arrives as bytes and means latin-1:
//! PEP 3333 asks for `str` with one character a byte, Rack for binary strings.

use crate::WireError;

/// Which interpreter reads the environment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Dialect {
    Python,
    Ruby,
}

/// Pairs encoded once and copied into many environments.
#[derive(Debug, Clone)]
pub struct Constants {
    dialect: Dialect,
    bytes: Vec<u8>,
    count: u32,
}

impl Constants {
    /// Encodes what `fill` adds, for environments of the same `dialect`.
    pub fn new(dialect: Dialect, fill: impl FnOnce(&mut EnvironEncoder<'_>)) -> Self {
        let mut bytes = Vec::new();
        let mut encoder = EnvironEncoder {
            out: &mut bytes,
            dialect,
            start: 0,
            count: 0,
        };
        fill(&mut encoder);
        let count = encoder.count;
        Self {
            dialect,
            bytes,
            count,
        }
    }
}

/// Writes one dictionary to the end of a buffer, pair by pair.
///
/// Order of calls: pairs in any order, then [`finish`](Self::finish). A key given twice means its
/// last value, as in any dictionary.
#[derive(Debug)]
pub struct EnvironEncoder<'a> {
    out: &'a mut Vec<u8>,
    dialect: Dialect,
    /// Where Ruby's pair count is patched in.
    start: usize,
    count: u32,
}

impl<'a> EnvironEncoder<'a> {
    /// Opens a dictionary at the end of `out`.
    pub fn new(out: &'a mut Vec<u8>, dialect: Dialect) -> Self {
        match dialect {
            Dialect::Python => out.push(b'{'),
            // The two-byte form of the count (0x02, low, high) is legal for small numbers too,
            // so three bytes are kept free and filled at the end.
            Dialect::Ruby => out.extend_from_slice(&[4, 8, b'{', 2, 0, 0]),
        }
        let start = out.len();
        Self {
            out,
            dialect,
            start,
            count: 0,
        }
    }

    /// The dialect that is being written.
    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Adds text: both slices are latin-1.
    pub fn pair(&mut self, key: &[u8], value: &[u8]) {
        self.key(key);
        match self.dialect {
            Dialect::Python => python_text(self.out, value),
            Dialect::Ruby => ruby_string(self.out, value),
        }
    }

    /// Adds `prefix` and `value` joined, as one text.
    pub fn pair_joined(&mut self, key: &[u8], prefix: &[u8], value: &[u8]) {
        if self.dialect == Dialect::Python && !(prefix.is_ascii() && value.is_ascii()) {
            self.pair(key, &[prefix, value].concat());
            return;
        }
        self.key(key);
        match self.dialect {
            Dialect::Python => python_ascii_len(self.out, prefix.len() + value.len()),
            Dialect::Ruby => {
                self.out.push(b'"');
                ruby_long(self.out, clamp(prefix.len() + value.len()));
            }
        }
        self.out.extend_from_slice(prefix);
        self.out.extend_from_slice(value);
    }

    /// Adds a whole number.
    pub fn pair_int(&mut self, key: &[u8], value: i32) {
        self.key(key);
        self.out.push(b'i');
        match self.dialect {
            Dialect::Python => self.out.extend_from_slice(&value.to_le_bytes()),
            Dialect::Ruby => ruby_long(self.out, value.clamp(-RUBY_FIXNUM_MAX, RUBY_FIXNUM_MAX)),
        }
    }

    /// Adds true or false.
    pub fn pair_bool(&mut self, key: &[u8], value: bool) {
        self.key(key);
        self.out.push(if value { b'T' } else { b'F' });
    }

    /// Adds all of `constants`; those of another dialect are a programmer error and are left out.
    pub fn constants(&mut self, constants: &Constants) {
        debug_assert_eq!(self.dialect, constants.dialect);
        if self.dialect == constants.dialect {
            self.out.extend_from_slice(&constants.bytes);
            self.count = self.count.saturating_add(constants.count);
        }
    }

    /// Closes the dictionary.
    ///
    /// # Errors
    /// [`WireError::TooManyPairs`] above 65535; what was written is then useless.
    pub fn finish(self) -> Result<(), WireError> {
        let count = u16::try_from(self.count).map_err(|_| WireError::TooManyPairs)?;
        match self.dialect {
            Dialect::Python => self.out.push(b'0'),
            Dialect::Ruby => {
                self.out[self.start - 2..self.start].copy_from_slice(&count.to_le_bytes());
            }
        }
        Ok(())
    }

    fn key(&mut self, key: &[u8]) {
        self.count = self.count.saturating_add(1);
        match self.dialect {
            // Not the interned forms, `Z` and `A`: CPython 3.12 and later keep interned text for
            // ever, and clients choose names. Measured 0.1 us per request cheaper, too.
            Dialect::Python => python_text(self.out, key),
            Dialect::Ruby => ruby_string(self.out, key),
        }
    }
}

/// Writes `str`: as short or long ASCII when it is ASCII, else as UTF-8.
fn python_text(out: &mut Vec<u8>, text: &[u8]) {
    if text.is_ascii() {
        python_ascii_len(out, text.len());
        out.extend_from_slice(text);
        return;
    }
    let wide = text.iter().filter(|byte| **byte >= 0x80).count();
    out.push(b'u');
    out.extend_from_slice(&clamp(text.len() + wide).to_le_bytes());
    for byte in text {
        if *byte < 0x80 {
            out.push(*byte);
        } else {
            out.extend_from_slice(&[0xc0 | (byte >> 6), 0x80 | (byte & 0x3f)]);
        }
    }
}

fn python_ascii_len(out: &mut Vec<u8>, len: usize) {
    if let Ok(len) = u8::try_from(len) {
        out.extend_from_slice(&[b'z', len]);
    } else {
        out.push(b'a');
        out.extend_from_slice(&clamp(len).to_le_bytes());
    }
}

fn ruby_string(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    ruby_long(out, clamp(text.len()));
    out.extend_from_slice(text);
}

/// Marshal's packed integer: one byte for -123..=122, else a byte count and little-endian bytes.
fn ruby_long(out: &mut Vec<u8>, number: i32) {
    let [b0, b1, b2, b3] = number.to_le_bytes();
    match number {
        0 => out.push(0),
        1..=122 => out.push(b0 + 5),
        -123..=-1 => out.push(b0.wrapping_sub(5)),
        123..=0xff => out.extend_from_slice(&[1, b0]),
        0x100..=0xffff => out.extend_from_slice(&[2, b0, b1]),
        -0x100..=-124 => out.extend_from_slice(&[0xff, b0]),
        -0x1_0000..=-0x101 => out.extend_from_slice(&[0xfe, b0, b1]),
        _ if number > 0 => out.extend_from_slice(&[4, b0, b1, b2, b3]),
        _ => out.extend_from_slice(&[0xfc, b0, b1, b2, b3]),
    }
}

/// A length as the formats hold it. Anything over the frame bound makes `encode_request` fail in
/// the end, so a clamped value never leaves this process.
fn clamp(len: usize) -> i32 {
    i32::try_from(len).unwrap_or(i32::MAX)
}

/// Marshal writes integers beyond 31 bits in another form, which the environment never needs.
const RUBY_FIXNUM_MAX: i32 = (1 << 30) - 1;

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
    fn writes_nothing_but_the_braces_for_an_empty_dictionary() {
        assert_eq!(encode(Dialect::Python, |_| ()), b"{0");
        assert_eq!(encode(Dialect::Ruby, |_| ()), [4, 8, b'{', 2, 0, 0]);
    }

    #[test]
    fn copies_constants_with_their_count() {
        for dialect in [Dialect::Python, Dialect::Ruby] {
            let constants = Constants::new(dialect, |e| {
                e.pair(b"A", b"1");
                e.pair_bool(b"B", true);
            });
            let copied = encode(dialect, |e| {
                e.constants(&constants);
                e.pair_int(b"C", 300);
            });
            let written = encode(dialect, |e| {
                e.pair(b"A", b"1");
                e.pair_bool(b"B", true);
                e.pair_int(b"C", 300);
            });
            assert_eq!(copied, written, "{dialect:?}");
        }
    }

    #[test]
    fn joins_prefix_and_value_as_if_given_whole() {
        let rows: [(&[u8], &[u8]); 3] = [(b"a", b"b"), (b"t=", &[b'9'; 300]), (b"\xe9", b"x")];
        for dialect in [Dialect::Python, Dialect::Ruby] {
            for (prefix, value) in rows {
                let joined = encode(dialect, |e| e.pair_joined(b"K", prefix, value));
                let whole = encode(dialect, |e| e.pair(b"K", &[prefix, value].concat()));
                assert_eq!(joined, whole, "{dialect:?} {prefix:?}");
            }
        }
    }

    #[test]
    fn refuses_more_pairs_than_the_count_can_hold() {
        let mut out = Vec::new();
        let mut encoder = EnvironEncoder::new(&mut out, Dialect::Ruby);
        for _ in 0..65536 {
            encoder.pair_bool(b"", true);
        }
        assert_eq!(encoder.finish(), Err(WireError::TooManyPairs));
    }
}
