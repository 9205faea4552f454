//! Limits the request body to what an AJP13 container has requested.
//!
//! The relay keeps one [`BodyCredit`] per request: it writes a packet whenever
//! [`BodyCredit::available_bytes`] is above 0, and passes every
//! [`GatewayEvent::BodyRequested`](crate::gateway::GatewayEvent) to [`BodyCredit::grant`]. The
//! first packet of a body is sent unrequested; every other one answers a request and is no longer
//! than requested. The container might leave further bytes unread and take them for the next
//! request.

use super::{GET_BODY_CHUNK, MAX_PACKET_BYTES, TO_CONTAINER};
use crate::gateway::GatewayError;

/// How many body bytes the container has requested and not received.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BodyCredit {
    available_bytes: u16,
}

impl BodyCredit {
    /// Creates the state after a FORWARD_REQUEST with a body of `length` bytes.
    pub fn new(length: u64) -> Self {
        let available_bytes = if length > 0 { MAX_DATA_BYTES } else { 0 };
        Self { available_bytes }
    }

    /// Maximum bytes of the next packet; 0 while none may be sent. If it is not 0 when the response
    /// has ended, the container still waits, and the connection cannot be used again.
    pub fn available_bytes(&self) -> usize {
        usize::from(self.available_bytes)
    }

    /// Records a request of the container for at most `bytes` more.
    ///
    /// # Errors
    /// The container still waits for its previous request.
    pub fn grant(&mut self, bytes: usize) -> Result<(), GatewayError> {
        if self.available_bytes > 0 {
            return Err(GatewayError::AjpOverlappingBodyRequest);
        }
        if bytes == 0 {
            return Err(GatewayError::AjpContent(GET_BODY_CHUNK));
        }
        self.available_bytes =
            u16::try_from(bytes).map_or(MAX_DATA_BYTES, |it| it.min(MAX_DATA_BYTES));
        Ok(())
    }

    /// Appends the requested packet with the first of `bytes`, and returns their number. Empty
    /// `bytes` end the body. Writes nothing without a request.
    pub fn encode(&mut self, out: &mut Vec<u8>, bytes: &[u8]) -> usize {
        if self.available_bytes == 0 {
            return 0;
        }
        let len = u16::try_from(bytes.len())
            .map_or(self.available_bytes, |len| len.min(self.available_bytes));
        self.available_bytes = 0;
        out.extend_from_slice(&TO_CONTAINER);
        if len == 0 {
            out.extend_from_slice(&[0, 0]);
            return 0;
        }
        out.extend_from_slice(&(len + 2).to_be_bytes());
        out.extend_from_slice(&len.to_be_bytes());
        out.extend_from_slice(&bytes[..usize::from(len)]);
        usize::from(len)
    }
}

/// A packet without its mark, its length and the length of the data.
const MAX_DATA_BYTES: u16 = MAX_PACKET_BYTES - 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sends_the_first_packet_unrequested_and_no_second() {
        let mut credit = BodyCredit::new(10_000);
        let (mut out, body) = (Vec::new(), [b'x'; 10_000]);
        assert_eq!(credit.encode(&mut out, &body), 8186);
        assert_eq!(out.len(), 8192);
        assert_eq!(out[..6], [0x12, 0x34, 0x1f, 0xfc, 0x1f, 0xfa]);
        assert_eq!(
            (
                credit.available_bytes(),
                credit.encode(&mut out, &body[8186..])
            ),
            (0, 0)
        );
        assert_eq!(out.len(), 8192);
    }

    #[test]
    fn sends_nothing_unrequested_without_a_body() {
        let mut credit = BodyCredit::new(0);
        let mut out = Vec::new();
        assert_eq!(
            (credit.available_bytes(), credit.encode(&mut out, b"x")),
            (0, 0)
        );
        assert!(out.is_empty());
    }

    #[test]
    fn never_sends_more_than_requested() {
        for (requested, body_len, expected) in [
            (3, 10, 3),
            (10, 3, 3),
            (8186, 9000, 8186),
            (8187, 9000, 8186),
            (65_535, 70_000, 8186),
            (usize::MAX, 70_000, 8186),
        ] {
            let mut credit = BodyCredit::new(0);
            credit.grant(requested).unwrap();
            let mut out = Vec::new();
            let body = vec![b'x'; body_len];
            assert_eq!(
                credit.encode(&mut out, &body),
                expected,
                "{requested} of {body_len}"
            );
            assert_eq!(out.len(), 6 + expected, "{requested} of {body_len}");
            assert_eq!(credit.available_bytes(), 0);
        }
    }

    #[test]
    fn sends_an_empty_packet_when_the_body_is_over() {
        let mut credit = BodyCredit::new(0);
        credit.grant(8186).unwrap();
        let mut out = Vec::new();
        assert_eq!(credit.encode(&mut out, b""), 0);
        assert_eq!(out, [0x12, 0x34, 0, 0]);
        assert_eq!(credit.available_bytes(), 0);
    }

    #[test]
    fn refuses_requests_that_overlap_or_are_empty() {
        let mut credit = BodyCredit::new(1);
        assert_eq!(
            credit.grant(1),
            Err(GatewayError::AjpOverlappingBodyRequest)
        );
        credit.encode(&mut Vec::new(), b"x");
        assert_eq!(
            credit.grant(0),
            Err(GatewayError::AjpContent(GET_BODY_CHUNK))
        );
        assert_eq!(credit.grant(1), Ok(()));
    }
}
