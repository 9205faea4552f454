//! FORWARD_REQUEST: the head of a request in one AJP13 packet.
//!
//! Called by the relay of an upstream once per request. Names with a code are sent as code. The
//! client's address and TLS come from the arguments alone, never from fields; the secret attribute
//! comes from the configuration.

use super::{NULL_STRING, TO_CONTAINER, codes};
use crate::gateway::EncodeError;

/// The largest packet that every container accepts, with its header.
pub const MAX_PACKET_BYTES: u16 = 8192;

/// The data of a request besides its fields.
#[derive(Debug, Clone, Copy, Default)]
pub struct AjpRequest<'a> {
    /// The method as sent.
    pub method: &'a str,
    /// `HTTP/1.1`.
    pub protocol: &'a str,
    /// The path, without the query.
    pub path: &'a str,
    /// The query, without the question mark.
    pub query: Option<&'a str>,
    /// The client's address.
    pub remote_addr: &'a str,
    /// The client's port; containers take it from an attribute.
    pub remote_port: Option<u16>,
    /// The requested host name.
    pub server_name: &'a str,
    /// The requested port.
    pub server_port: u16,
    /// Whether the client uses TLS to the front end.
    pub is_tls: bool,
    /// The secret that the container requires.
    pub secret: Option<&'a str>,
}

/// Appends a FORWARD_REQUEST packet with `fields`: `Content-Length` when there is a body, and no
/// hop-by-hop fields.
///
/// # Errors
/// [`EncodeError::TooLarge`] above [`MAX_PACKET_BYTES`], [`EncodeError::NulInText`]; `out` is
/// unchanged.
pub fn encode_forward_request<'f>(
    out: &mut Vec<u8>,
    request: &AjpRequest<'_>,
    fields: impl Iterator<Item = (&'f str, &'f [u8])>,
) -> Result<(), EncodeError> {
    let start = out.len();
    out.extend_from_slice(&TO_CONTAINER);
    out.extend_from_slice(&[0, 0]);
    let mut packet = PacketWriter {
        out,
        end: start + usize::from(MAX_PACKET_BYTES),
    };
    let done = write_request(&mut packet, request, fields);
    if let Err(error) = done {
        out.truncate(start);
        return Err(error);
    }
    let len = u16::try_from(out.len() - start - 4).unwrap_or(MAX_PACKET_BYTES);
    out[start + 2..start + 4].copy_from_slice(&len.to_be_bytes());
    Ok(())
}

fn write_request<'f>(
    packet: &mut PacketWriter<'_>,
    request: &AjpRequest<'_>,
    fields: impl Iterator<Item = (&'f str, &'f [u8])>,
) -> Result<(), EncodeError> {
    let method = codes::method_code(request.method);
    packet.bytes(&[FORWARD_REQUEST, method.unwrap_or(METHOD_BY_NAME)])?;
    packet.string(request.protocol.as_bytes())?;
    packet.string(request.path.as_bytes())?;
    packet.string(request.remote_addr.as_bytes())?;
    // The client's host name, which is not looked up.
    packet.bytes(&NULL_STRING.to_be_bytes())?;
    packet.string(request.server_name.as_bytes())?;
    packet.bytes(&request.server_port.to_be_bytes())?;
    packet.bytes(&[u8::from(request.is_tls)])?;
    let count_at = packet.out.len();
    packet.bytes(&[0, 0])?;
    let mut count = 0u16;
    for (name, value) in fields {
        match codes::request_field_code(name) {
            Some(code) => packet.bytes(&code.to_be_bytes())?,
            None => packet.string(name.as_bytes())?,
        }
        packet.string(value)?;
        // Cannot overflow: a packet has no room for that many.
        count = count.saturating_add(1);
    }
    packet.out[count_at..count_at + 2].copy_from_slice(&count.to_be_bytes());
    write_attributes(packet, request, method.is_none())?;
    packet.bytes(&[ATTRIBUTES_END])
}

fn write_attributes(
    packet: &mut PacketWriter<'_>,
    request: &AjpRequest<'_>,
    is_method_by_name: bool,
) -> Result<(), EncodeError> {
    if let Some(query) = request.query {
        packet.attribute(QUERY_STRING, query)?;
    }
    if is_method_by_name {
        packet.attribute(STORED_METHOD, request.method)?;
    }
    if let Some(secret) = request.secret {
        packet.attribute(SECRET, secret)?;
    }
    if let Some(port) = request.remote_port {
        packet.attribute(CUSTOM_ATTRIBUTE, "AJP_REMOTE_PORT")?;
        packet.string(itoa::Buffer::new().format(port).as_bytes())?;
    }
    Ok(())
}

/// Writes the packet.
struct PacketWriter<'o> {
    out: &'o mut Vec<u8>,
    /// The maximum end of the packet.
    end: usize,
}

impl PacketWriter<'_> {
    fn bytes(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        if bytes.len() > self.end - self.out.len() {
            return Err(EncodeError::TooLarge);
        }
        self.out.extend_from_slice(bytes);
        Ok(())
    }

    fn string(&mut self, text: &[u8]) -> Result<(), EncodeError> {
        if memchr::memchr(0, text).is_some() {
            return Err(EncodeError::NulInText);
        }
        let len = u16::try_from(text.len()).map_err(|_| EncodeError::TooLarge)?;
        self.bytes(&len.to_be_bytes())?;
        self.bytes(text)?;
        self.bytes(&[0])
    }

    fn attribute(&mut self, code: u8, value: &str) -> Result<(), EncodeError> {
        self.bytes(&[code])?;
        self.string(value.as_bytes())
    }
}

const FORWARD_REQUEST: u8 = 2;
const METHOD_BY_NAME: u8 = 0xff;
const QUERY_STRING: u8 = 0x05;
/// A name and a value follow.
const CUSTOM_ATTRIBUTE: u8 = 0x0a;
const SECRET: u8 = 0x0c;
const STORED_METHOD: u8 = 0x0d;
const ATTRIBUTES_END: u8 = 0xff;

#[cfg(test)]
mod tests;
