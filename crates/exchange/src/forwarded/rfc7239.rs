//! The grammar of `Forwarded` (RFC 7239 §4): elements, each with one proxy's parameters.
//!
//! A part of `forwarded`. Pure. Read from the right, since each proxy adds its element at the end
//! of the list that it received.
//!
//! # Invariants
//! - An element is the shortest text behind a comma, or the whole line, that follows the grammar.
//!   So a quote that a client leaves open does not swallow the elements to its right. A proxy's
//!   element is never cut at a comma inside its own quotes: behind such a comma the quotes do not
//!   pair.
//! - A `for`, `proto` or `host` that comes twice in one element, and any other text outside the
//!   grammar, ends the reading; the elements to its right count.

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ForwardedElement {
    /// `for`: the client's node.
    pub(super) node: Option<Vec<u8>>,
    /// `proto`.
    pub(super) scheme: Option<Vec<u8>>,
    /// `host`.
    pub(super) host: Option<Vec<u8>>,
}

/// The elements of all lines of a head, the last one first.
#[derive(Debug)]
pub(super) struct ReverseElements<'h> {
    /// The lines that are not begun yet.
    unread_lines: Vec<&'h [u8]>,
    rest: &'h [u8],
}

impl<'h> ReverseElements<'h> {
    /// Reads `lines`, in the order of the head.
    pub(super) fn new(lines: impl Iterator<Item = &'h [u8]>) -> Self {
        Self {
            unread_lines: lines.collect(),
            rest: b"",
        }
    }

    fn take_last(&mut self) -> Result<ForwardedElement, ()> {
        let line = self.rest;
        let commas = line.iter().enumerate().rev();
        let commas = commas.filter(|(_, byte)| **byte == b',');
        for (at, _) in commas {
            if let Ok(element) = parse_element(line[at + 1..].trim_ascii()) {
                self.rest = &line[..at];
                return Ok(element);
            }
        }
        self.rest = b"";
        parse_element(line.trim_ascii())
    }
}

impl Iterator for ReverseElements<'_> {
    type Item = Result<ForwardedElement, ()>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            // RFC 9110 §5.6.1: empty elements do not count.
            let is_filler = |byte: &u8| matches!(byte, b',' | b' ' | b'\t');
            let end = self.rest.iter().rposition(|byte| !is_filler(byte));
            match end {
                Some(end) => self.rest = &self.rest[..=end],
                None => {
                    self.rest = self.unread_lines.pop()?;
                    continue;
                }
            }
            let element = self.take_last();
            if element.is_err() {
                // Elements left of it cannot be told apart.
                self.unread_lines.clear();
            }
            return Some(element);
        }
    }
}

fn parse_element(bytes: &[u8]) -> Result<ForwardedElement, ()> {
    let mut element = ForwardedElement::default();
    let mut rest = bytes;
    loop {
        let (name, after) = split_token(rest);
        rest = after
            .strip_prefix(b"=")
            .filter(|_| !name.is_empty())
            .ok_or(())?;
        let (value, after) = parse_value(rest)?;
        element.set(name, value)?;
        rest = after.trim_ascii_start();
        match rest.strip_prefix(b";") {
            Some(after) => rest = after.trim_ascii_start(),
            None => break,
        }
        if rest.is_empty() {
            break;
        }
    }
    match rest.is_empty() {
        true => Ok(element),
        false => Err(()),
    }
}

impl ForwardedElement {
    /// Sets a parameter; parameters besides these three are ignored, in any number.
    fn set(&mut self, name: &[u8], value: Vec<u8>) -> Result<(), ()> {
        let is = |own: &[u8]| name.eq_ignore_ascii_case(own);
        let place = match () {
            () if is(b"for") => &mut self.node,
            () if is(b"proto") => &mut self.scheme,
            () if is(b"host") => &mut self.host,
            () => return Ok(()),
        };
        match place.replace(value) {
            None => Ok(()),
            Some(_) => Err(()),
        }
    }
}

/// Parses a token, or a quoted string without its quotes and backslashes. Proxies also write
/// addresses with colons and brackets without quotes: these are accepted too.
fn parse_value(bytes: &[u8]) -> Result<(Vec<u8>, &[u8]), ()> {
    let Some(mut rest) = bytes.strip_prefix(b"\"") else {
        // A backslash has no meaning here, and could hide a quote from another reader.
        let is_end = |&byte: &u8| matches!(byte, b',' | b';' | b' ' | b'\t' | b'"' | b'=' | b'\\');
        let end = bytes.iter().position(is_end).unwrap_or(bytes.len());
        let (value, after) = bytes.split_at(end);
        return match value.is_empty() {
            true => Err(()),
            false => Ok((value.to_vec(), after)),
        };
    };
    let mut value = Vec::new();
    loop {
        match rest {
            [b'"', after @ ..] => return Ok((value, after)),
            [b'\\', byte, after @ ..] => {
                value.push(*byte);
                rest = after;
            }
            [b'\\'] | [] => return Err(()),
            [byte, after @ ..] => {
                value.push(*byte);
                rest = after;
            }
        }
    }
}

/// Letters, digits and hyphens: all registered parameters have such names.
fn split_token(bytes: &[u8]) -> (&[u8], &[u8]) {
    let is_end = |byte: &u8| !(byte.is_ascii_alphanumeric() || *byte == b'-');
    bytes.split_at(bytes.iter().position(is_end).unwrap_or(bytes.len()))
}
