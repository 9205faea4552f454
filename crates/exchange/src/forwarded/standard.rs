//! The grammar of `Forwarded` (RFC 7239 §4): elements, each with what one proxy says of its client.
//!
//! A part of `forwarded`. Pure. A quoted string that does not end, a `for`, `proto` or `host` that comes twice
//! in one element and whatever else is not of the grammar break the whole field.

/// What one proxy says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Element {
    /// `for`: the client's node.
    pub(super) node: Option<Vec<u8>>,
    /// `proto`.
    pub(super) scheme: Option<Vec<u8>>,
    /// `host`.
    pub(super) host: Option<Vec<u8>>,
}

/// Appends the elements of one field line.
///
/// # Errors
/// When the line breaks the grammar.
pub(super) fn parse(line: &[u8], elements: &mut Vec<Element>) -> Result<(), ()> {
    let mut rest = skip_blanks(line);
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix(b",") {
            rest = skip_blanks(after);
            continue;
        }
        let mut element = Element::default();
        loop {
            let (name, after) = split_token(rest);
            rest = after
                .strip_prefix(b"=")
                .filter(|_| !name.is_empty())
                .ok_or(())?;
            let (value, after) = parse_value(rest)?;
            element.set(name, value)?;
            rest = skip_blanks(after);
            match rest.strip_prefix(b";") {
                Some(after) => rest = skip_blanks(after),
                None => break,
            }
            if rest.is_empty() || rest.starts_with(b",") {
                break;
            }
        }
        if !rest.is_empty() && !rest.starts_with(b",") {
            return Err(());
        }
        elements.push(element);
    }
    Ok(())
}

impl Element {
    /// Takes in a parameter; others than these three are passed over, however many there are.
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

/// A token, or a quoted string without its quotes and backslashes. Proxies also write addresses with
/// colons and brackets without quotes: these are taken too.
fn parse_value(bytes: &[u8]) -> Result<(Vec<u8>, &[u8]), ()> {
    let Some(mut rest) = bytes.strip_prefix(b"\"") else {
        let is_end = |&byte: &u8| matches!(byte, b',' | b';' | b' ' | b'\t' | b'"' | b'=');
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

/// Letters, digits and hyphens: all parameters there are have such names.
fn split_token(bytes: &[u8]) -> (&[u8], &[u8]) {
    let is_end = |byte: &u8| !(byte.is_ascii_alphanumeric() || *byte == b'-');
    bytes.split_at(bytes.iter().position(is_end).unwrap_or(bytes.len()))
}

fn skip_blanks(bytes: &[u8]) -> &[u8] {
    bytes.trim_ascii_start()
}
