//! Received bytes that are not used yet: a part of a head, or pipelined requests.
//!
//! Owned by the connection, lent while a body is read. Using a prefix only moves an offset, so a
//! thousand requests in one piece are not copied a thousand times. An empty buffer frees its
//! memory, so an idle connection has none.

/// A queue of bytes: appended at the end, used from the start.
#[derive(Debug, Default)]
pub(crate) struct ReceiveBuffer {
    bytes: Vec<u8>,
    start: usize,
}

impl From<Vec<u8>> for ReceiveBuffer {
    fn from(bytes: Vec<u8>) -> Self {
        Self { bytes, start: 0 }
    }
}

impl ReceiveBuffer {
    pub(crate) fn is_empty(&self) -> bool {
        self.start == self.bytes.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    pub(crate) fn unread(&self) -> &[u8] {
        &self.bytes[self.start..]
    }

    pub(crate) fn push(&mut self, more: &[u8]) {
        if more.is_empty() {
            return;
        }
        // At least as many bytes were used as are moved: amortised constant cost.
        if self.start > self.bytes.len() / 2 {
            self.bytes.drain(..self.start);
            self.start = 0;
        }
        self.bytes.extend_from_slice(more);
    }

    /// Marks the first `count` unused bytes as used.
    pub(crate) fn consume(&mut self, count: usize) {
        self.start = (self.start + count).min(self.bytes.len());
        if self.is_empty() {
            *self = Self::default();
        }
    }

    pub(crate) fn take_unread(&mut self) -> Vec<u8> {
        let mut all = std::mem::take(self);
        all.bytes.drain(..all.start);
        all.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_stay_in_order_and_consumed_ones_are_freed() {
        let mut received = ReceiveBuffer::default();
        let mut expected = 0_u8;
        let mut next = 0_u8;
        for round in 0..200_usize {
            let more: Vec<u8> = (0..round % 7)
                .map(|_| {
                    next = next.wrapping_add(1);
                    next
                })
                .collect();
            received.push(&more);
            let count = received.len().min(round % 5);
            for &byte in &received.unread()[..count] {
                expected = expected.wrapping_add(1);
                assert_eq!(byte, expected);
            }
            received.consume(count);
        }
        assert_eq!(
            received.take_unread().len(),
            usize::from(next.wrapping_sub(expected))
        );
        assert_eq!(received.bytes.capacity(), 0);
        received.push(b"ab");
        received.consume(2);
        assert_eq!(received.bytes.capacity(), 0);
    }
}
