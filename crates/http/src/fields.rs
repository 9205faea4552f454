//! Header fields of a response, stored as they are sent.
//!
//! A block is one buffer of `Name: value` lines, so encoding a response copies it once, and the
//! fields that a route always adds are shared. `apps`, `files` and `proxy` fill blocks, `edge` adds
//! its own fields, `h1::encode` writes them.
//!
//! # Invariants
//!
//! - Only checked lines are added: a CR or LF in a value would start a second response.
//! - The block records whether it has a field that the encoder writes itself.

use std::str;

use bytes::Bytes;
use thiserror::Error;

use crate::grammar::{is_field_value, is_token, push_decimal, token_eq_ignore_case, trim_blanks};
use crate::{CheckedField, KnownFieldName};

/// Why a field cannot be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FieldError {
    /// The name is empty or not a token (RFC 9110 §5.1).
    #[error("malformed header field name")]
    InvalidName,
    /// The value contains CR, LF, NUL or another control byte (RFC 9110 §5.5).
    #[error("control byte in a header field value")]
    InvalidValue,
}

/// An ordered list of response header fields; cheap to clone once frozen.
#[derive(Clone, Debug, Default)]
pub struct FieldBlock {
    lines: FieldLines,
    has_framing_fields: bool,
    has_date: bool,
}

#[derive(Clone, Debug)]
enum FieldLines {
    Owned(Vec<u8>),
    Shared(Bytes),
}

impl Default for FieldLines {
    fn default() -> Self {
        Self::Owned(Vec::new())
    }
}

impl FieldBlock {
    /// Creates an empty block without allocating.
    pub const fn new() -> Self {
        Self {
            lines: FieldLines::Owned(Vec::new()),
            has_framing_fields: false,
            has_date: false,
        }
    }

    /// Creates an empty block with capacity for `bytes` bytes of lines.
    pub fn with_capacity(bytes: usize) -> Self {
        Self {
            lines: FieldLines::Owned(Vec::with_capacity(bytes)),
            ..Self::new()
        }
    }

    /// Removes all fields and keeps an owned buffer's capacity.
    pub fn clear(&mut self) {
        (self.has_framing_fields, self.has_date) = (false, false);
        match &mut self.lines {
            FieldLines::Owned(lines) => lines.clear(),
            FieldLines::Shared(_) => self.lines = FieldLines::Owned(Vec::new()),
        }
    }

    /// Appends a field, without blanks around the value.
    ///
    /// # Errors
    /// Fails if the name is not a token or the value contains a control byte. Nothing is added
    /// then.
    pub fn push(&mut self, name: impl AsRef<[u8]>, value: &[u8]) -> Result<(), FieldError> {
        let name = name.as_ref();
        if !is_token(name) {
            return Err(FieldError::InvalidName);
        }
        let value = trim_blanks(value);
        if !is_field_value(value) {
            return Err(FieldError::InvalidValue);
        }
        self.push_checked(name, value);
        Ok(())
    }

    /// Appends a field of a head that a scanner has checked.
    pub fn push_field(&mut self, field: CheckedField<'_>) {
        let (name, value) = (field.name(), field.value());
        self.has_framing_fields |= match field.known_name() {
            KnownFieldName::Connection
            | KnownFieldName::ContentLength
            | KnownFieldName::TransferEncoding => true,
            KnownFieldName::ContentType | KnownFieldName::Date => false,
            KnownFieldName::Other => is_framing_name(name),
        };
        self.has_date |= field.known_name() == KnownFieldName::Date;
        let lines = self.lines_mut();
        match field.canonical_line() {
            Some(line) => lines.extend_from_slice(line),
            None => {
                lines.reserve(name.len() + value.len() + 4);
                lines.extend_from_slice(name);
                lines.extend_from_slice(b": ");
                lines.extend_from_slice(value);
                lines.extend_from_slice(b"\r\n");
            }
        }
    }

    /// Appends a field that is known at compile time. If it is malformed, debug builds panic and
    /// release builds omit it.
    pub fn push_static(&mut self, name: &'static str, value: &'static str) {
        let pushed = self.push(name, value.as_bytes());
        debug_assert!(pushed.is_ok(), "malformed literal field {name}");
    }

    /// Appends a field with a decimal value.
    pub fn push_u64(&mut self, name: &'static str, value: u64) {
        debug_assert!(is_token(name.as_bytes()), "malformed literal field {name}");
        let lines = self.start_line(name.as_bytes(), 20);
        push_decimal(lines, value);
        lines.extend_from_slice(b"\r\n");
    }

    /// Replaces all fields of that name by one.
    ///
    /// # Errors
    /// As for `push`. The block is unchanged then.
    pub fn set(&mut self, name: &str, value: &[u8]) -> Result<(), FieldError> {
        let before = self.as_bytes().len();
        self.push(name, value)?;
        self.remove_within(before, |other| other.eq_ignore_ascii_case(name));
        Ok(())
    }

    /// Appends all fields of another block.
    pub fn append(&mut self, other: &Self) {
        self.has_framing_fields |= other.has_framing_fields;
        self.has_date |= other.has_date;
        if self.is_empty() && matches!(other.lines, FieldLines::Shared(_)) {
            self.lines = other.lines.clone();
        } else {
            self.lines_mut().extend_from_slice(other.as_bytes());
        }
    }

    /// Removes all fields of that name. Returns whether there was one.
    pub fn remove(&mut self, name: &str) -> bool {
        self.remove_where(|other| other.eq_ignore_ascii_case(name))
    }

    /// Removes all fields with such names. Returns whether there was one.
    pub fn remove_where(&mut self, is_removed: impl Fn(&str) -> bool) -> bool {
        self.remove_within(usize::MAX, is_removed)
    }

    /// The value of the first field of that name, ignoring ASCII case.
    pub fn get(&self, name: &str) -> Option<&[u8]> {
        self.iter()
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value)
    }

    /// Whether there is a field of that name.
    pub fn contains(&self, name: &str) -> bool {
        self.get(name).is_some()
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &[u8])> {
        self.lines().map(split_line)
    }

    /// The lines as sent, each with its CR LF.
    pub fn as_bytes(&self) -> &[u8] {
        match &self.lines {
            FieldLines::Owned(lines) => lines,
            FieldLines::Shared(lines) => lines,
        }
    }

    pub fn is_empty(&self) -> bool {
        self.as_bytes().is_empty()
    }

    /// Converts the block to a form that clones without copying. A later change copies it once.
    #[must_use]
    pub fn freeze(self) -> Self {
        let lines = match self.lines {
            FieldLines::Owned(lines) => FieldLines::Shared(Bytes::from(lines)),
            shared => shared,
        };
        Self { lines, ..self }
    }

    /// Whether a field must be left to the encoder.
    pub(crate) fn has_framing(&self) -> bool {
        self.has_framing_fields
    }

    /// Whether there may be a `Date`.
    pub(crate) fn has_date(&self) -> bool {
        self.has_date
    }

    /// The lines, each with its CR LF.
    pub(crate) fn lines(&self) -> impl Iterator<Item = &[u8]> {
        self.as_bytes().split_inclusive(|&byte| byte == b'\n')
    }

    fn push_checked(&mut self, name: &[u8], value: &[u8]) {
        let lines = self.start_line(name, value.len());
        lines.extend_from_slice(value);
        lines.extend_from_slice(b"\r\n");
    }

    fn start_line(&mut self, name: &[u8], value_len: usize) -> &mut Vec<u8> {
        self.has_framing_fields |= is_framing_name(name);
        self.has_date |= token_eq_ignore_case(name, b"date");
        let lines = self.lines_mut();
        lines.reserve(name.len() + value_len + 4);
        lines.extend_from_slice(name);
        lines.extend_from_slice(b": ");
        lines
    }

    // Only considers lines in the first `end` bytes.
    fn remove_within(&mut self, end: usize, is_removed: impl Fn(&str) -> bool) -> bool {
        let (mut at, mut found) = (0, false);
        // Nearly always nothing is removed, and a shared block stays shared.
        let mut kept = Vec::new();
        for line in self.lines() {
            let is_match = at < end && is_removed(split_line(line).0);
            if is_match && !found {
                found = true;
                kept.extend_from_slice(&self.as_bytes()[..at]);
            } else if found && !is_match {
                kept.extend_from_slice(line);
            }
            at += line.len();
        }
        if found {
            self.lines = FieldLines::Owned(kept);
            self.has_date = self.contains("date");
            let has_framing = self
                .iter()
                .any(|(name, _)| is_framing_name(name.as_bytes()));
            self.has_framing_fields = has_framing;
        }
        found
    }

    fn lines_mut(&mut self) -> &mut Vec<u8> {
        if let FieldLines::Shared(shared) = &self.lines {
            self.lines = FieldLines::Owned(shared.to_vec());
        }
        match &mut self.lines {
            FieldLines::Owned(lines) => lines,
            FieldLines::Shared(_) => unreachable!("made owned above"),
        }
    }
}

impl PartialEq for FieldBlock {
    /// Blocks are equal if they send the same bytes.
    fn eq(&self, other: &Self) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for FieldBlock {}

/// Whether the field is about the connection or the framing, which the encoder decides (RFC 9110
/// §7.6.1, RFC 9112 §6).
pub(crate) fn is_framing_name(name: &[u8]) -> bool {
    match name.len() {
        10 => {
            token_eq_ignore_case(name, b"connection") || token_eq_ignore_case(name, b"keep-alive")
        }
        14 => token_eq_ignore_case(name, b"content-length"),
        16 => token_eq_ignore_case(name, b"proxy-connection"),
        17 => token_eq_ignore_case(name, b"transfer-encoding"),
        _ => false,
    }
}

/// Name and value of a line that `push` wrote.
pub(crate) fn split_line(line: &[u8]) -> (&str, &[u8]) {
    let colon = memchr::memchr(b':', line).unwrap_or(line.len());
    let name = str::from_utf8(&line[..colon]).unwrap_or_default();
    let value = line.get(colon + 2..).unwrap_or_default();
    (name, value.strip_suffix(b"\r\n").unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(fields: &[(&str, &str)]) -> FieldBlock {
        let mut block = FieldBlock::new();
        for (name, value) in fields {
            block.push(name, value.as_bytes()).unwrap();
        }
        block
    }

    #[test]
    fn holds_lines_ready_to_send() {
        let mut fields = block(&[("Content-Type", " text/plain\t"), ("X-Empty", "")]);
        fields.push_u64("Age", 17);
        fields.push_static("Vary", "Accept");
        assert_eq!(
            fields.as_bytes(),
            b"Content-Type: text/plain\r\nX-Empty: \r\nAge: 17\r\nVary: Accept\r\n"
        );
        let pairs: Vec<_> = fields.iter().collect();
        assert_eq!(pairs[0], ("Content-Type", b"text/plain".as_slice()));
        assert_eq!(pairs[1], ("X-Empty", b"".as_slice()));
        assert_eq!(fields.get("AGE"), Some(b"17".as_slice()));
    }

    #[test]
    fn refuses_what_would_split_a_response() {
        for (what, name, value, expected) in [
            (
                "lf in value",
                "A",
                "b\nSet-Cookie: x",
                FieldError::InvalidValue,
            ),
            ("cr in value", "A", "b\rc", FieldError::InvalidValue),
            ("nul in value", "A", "b\0c", FieldError::InvalidValue),
            ("del in value", "A", "\x7f", FieldError::InvalidValue),
            ("escape in value", "A", "\x1b[31m", FieldError::InvalidValue),
            ("trailing crlf", "A", "b\r\n", FieldError::InvalidValue),
            ("empty name", "", "b", FieldError::InvalidName),
            ("colon in name", "A:", "b", FieldError::InvalidName),
            ("line break in name", "A\r\nB", "b", FieldError::InvalidName),
            ("space in name", "A B", "b", FieldError::InvalidName),
        ] {
            let mut fields = FieldBlock::new();
            assert_eq!(fields.push(name, value.as_bytes()), Err(expected), "{what}");
            assert!(fields.is_empty(), "{what}");
        }
        assert_eq!(FieldBlock::new().push("A", b"tab\there \xe9"), Ok(()));
    }

    #[test]
    fn removes_and_replaces_by_name() {
        let mut fields = block(&[("A", "1"), ("b", "2"), ("B", "3"), ("C", "4")]);
        assert!(fields.remove("B"));
        assert!(!fields.remove("B"));
        assert_eq!(fields.as_bytes(), b"A: 1\r\nC: 4\r\n");
        fields.set("a", b"5").unwrap();
        assert_eq!(fields.as_bytes(), b"C: 4\r\na: 5\r\n");
        assert_eq!(fields.set("c", b"\n"), Err(FieldError::InvalidValue));
        assert_eq!(fields.as_bytes(), b"C: 4\r\na: 5\r\n");
    }

    #[test]
    fn a_frozen_block_is_shared_until_it_changes() {
        let frozen = block(&[("A", "1")]).freeze();
        let mut copy = frozen.clone();
        assert_eq!(copy.as_bytes().as_ptr(), frozen.as_bytes().as_ptr());
        copy.push("B", b"2").unwrap();
        assert_eq!(frozen.as_bytes(), b"A: 1\r\n");
        assert_eq!(copy.as_bytes(), b"A: 1\r\nB: 2\r\n");
        let mut empty = FieldBlock::new();
        empty.append(&frozen);
        assert_eq!(empty.as_bytes().as_ptr(), frozen.as_bytes().as_ptr());
        empty.clear();
        assert!(empty.is_empty() && !frozen.is_empty());
    }

    #[test]
    fn knows_when_it_holds_fields_of_the_encoder() {
        for (name, framing, date) in [
            ("Content-Type", false, false),
            ("content-LENGTH", true, false),
            ("Transfer-Encoding", true, false),
            ("Connection", true, false),
            ("Keep-Alive", true, false),
            ("Date", false, true),
        ] {
            let mut fields = block(&[("X", "1"), (name, "1")]);
            assert_eq!(
                (fields.has_framing(), fields.has_date()),
                (framing, date),
                "{name}"
            );
            let mut outer = FieldBlock::new();
            outer.append(&fields);
            assert_eq!(
                (outer.has_framing(), outer.has_date()),
                (framing, date),
                "{name}"
            );
            fields.remove(name);
            assert_eq!(
                (fields.has_framing(), fields.has_date()),
                (false, false),
                "{name}"
            );
        }
    }
}
