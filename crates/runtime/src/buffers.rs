//! The event loop's shared receive buffer and output scratch, one of each per thread.
//!
//! Reads land in the receive buffer and are parsed there in the same poll; response heads are built
//! in the scratch and sent in the same poll.
//!
//! # Invariants
//! - A closure passed here never awaits (it cannot) and never reenters the same buffer.

use std::cell::RefCell;

/// Size of the shared receive buffer: the most one `recv` returns. A socket's default buffer holds
/// no more than a few of these.
pub const RECEIVE_BUFFER_BYTES: usize = 64 * 1024;

/// Size of the piece buffer: four TLS records.
pub const PIECE_BUFFER_BYTES: usize = 64 * 1024;

thread_local! {
    static PIECE: RefCell<Box<[u8]>> = RefCell::new(vec![0; PIECE_BUFFER_BYTES].into_boxed_slice());
    static RECEIVE: RefCell<Box<[u8]>> = RefCell::new(vec![0; RECEIVE_BUFFER_BYTES].into_boxed_slice());
    static OUTPUT: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(16 * 1024));
}

/// Runs `use_it` with the loop's receive buffer.
pub fn with_receive_buffer<R>(use_it: impl FnOnce(&mut [u8]) -> R) -> R {
    RECEIVE.with_borrow_mut(|buffer| use_it(buffer))
}

/// Runs `use_it` with the loop's buffer for a piece of a file on its way to a layer of a stream.
pub(crate) fn with_piece_buffer<R>(use_it: impl FnOnce(&mut [u8]) -> R) -> R {
    PIECE.with_borrow_mut(|buffer| use_it(buffer))
}

/// Runs `use_it` with the loop's empty output scratch.
pub fn with_output_buffer<R>(use_it: impl FnOnce(&mut Vec<u8>) -> R) -> R {
    OUTPUT.with_borrow_mut(|buffer| {
        buffer.clear();
        let result = use_it(buffer);
        // One huge head must not keep its memory for ever.
        if buffer.capacity() > 4 * RECEIVE_BUFFER_BYTES {
            buffer.clear();
            buffer.shrink_to(RECEIVE_BUFFER_BYTES);
        }
        result
    })
}
