//! The encoders of the server: their bound of memory, those that wait to be used again, and the
//! pool in which large bodies are encoded.
//!
//! Made once for the life of the server; each [`crate::CompressHandler`] has a handle.
//!
//! # Invariants
//! - The encoders in use, with the pieces of their bodies, take at most [`MAX_TOTAL_BYTES`].
//! - Each encoder has one job in the pool at most, so its queue is bounded too.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;

use penstock_runtime::blocking::Pool;

use crate::counters::{CompressionCounters, CompressionSnapshot};
use crate::encoder::{Encoder, EncoderSettings};
use crate::stream::max_piece_bytes;

/// Memory of all bodies that are being compressed: 200 large ones in `gzip`, or 80 in `zstd`.
const MAX_TOTAL_BYTES: usize = 128 << 20;

/// Encoders that wait for another body: 20 MiB of `zstd` at most.
const MAX_IDLE_ENCODERS: usize = 16;

/// Encoders of the server. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Compressor {
    shared: Arc<SharedEncoders>,
}

#[derive(Debug)]
struct SharedEncoders {
    pool: Pool,
    used_bytes: AtomicUsize,
    /// Finished encoders that can be used again, the last used last.
    idle: Mutex<Vec<(EncoderSettings, Encoder)>>,
    counters: CompressionCounters,
}

/// An encoder in use, with its share of the memory until it is dropped.
#[derive(Debug)]
pub(crate) struct EncoderLease {
    pub(crate) settings: EncoderSettings,
    pub(crate) encoder: Encoder,
    owner: Compressor,
    counted_bytes: usize,
}

/// What an encoder is for. Bodies that may be open for long leave memory to the others: an
/// application with many streams of events would else leave all pages uncompressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EncoderUse {
    /// A small body, encoded at once: each loop has one of these at a time, and none waits for
    /// memory.
    AtOnce,
    /// A body whose length is known.
    KnownLength,
    /// A body that ends when its source says so.
    UnknownLength,
    /// Events, and bodies that are not to be buffered.
    Events,
}

impl EncoderUse {
    /// The memory of all encoders up to which there is one for it.
    fn max_total_bytes(self) -> usize {
        match self {
            Self::AtOnce => usize::MAX,
            Self::KnownLength => MAX_TOTAL_BYTES,
            Self::UnknownLength => MAX_TOTAL_BYTES / 4 * 3,
            Self::Events => MAX_TOTAL_BYTES / 2,
        }
    }
}

impl Default for Compressor {
    fn default() -> Self {
        // Encoding never waits: more threads than cores only take turns.
        let threads = available_parallelism().map_or(1, usize::from);
        let max_queued = MAX_TOTAL_BYTES / MIN_LEASE_BYTES;
        Self::with_pool(Pool::new("compression", threads, max_queued))
    }
}

/// The share of the smallest encoder.
const MIN_LEASE_BYTES: usize = 416 << 10;

impl Compressor {
    pub(crate) fn with_pool(pool: Pool) -> Self {
        Self {
            shared: Arc::new(SharedEncoders {
                pool,
                used_bytes: AtomicUsize::new(0),
                idle: Mutex::default(),
                counters: CompressionCounters::default(),
            }),
        }
    }

    /// Compressed responses since the start, and the memory in use.
    #[must_use]
    pub fn snapshot(&self) -> CompressionSnapshot {
        let used = self.shared.used_bytes.load(Ordering::Relaxed);
        self.counters()
            .snapshot(used as u64, MAX_TOTAL_BYTES as u64)
    }

    /// The pool in which large bodies are encoded.
    #[must_use]
    pub fn pool(&self) -> &Pool {
        &self.shared.pool
    }

    pub(crate) fn counters(&self) -> &CompressionCounters {
        &self.shared.counters
    }

    /// An encoder for a body of `size` bytes, if that is known; `None` if the memory of encoders is
    /// used up, or the library refuses.
    pub(crate) fn acquire(
        &self,
        settings: EncoderSettings,
        size: Option<u64>,
        purpose: EncoderUse,
    ) -> Option<EncoderLease> {
        let bytes = match purpose {
            EncoderUse::AtOnce => 0,
            _ => lease_bytes(settings),
        };
        let used = self.shared.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        // From here on it gives its share back by itself.
        let mut lease = EncoderLease {
            settings,
            encoder: Encoder::Ended,
            owner: self.clone(),
            counted_bytes: bytes,
        };
        if used.saturating_add(bytes) > purpose.max_total_bytes() {
            return None;
        }
        let mut known = self.take_idle(settings);
        // One that cannot be reset is dropped.
        let known = known.take_if(|encoder| encoder.reset(size));
        lease.encoder = match known {
            Some(encoder) => encoder,
            None => Encoder::new(settings, size).ok()?,
        };
        Some(lease)
    }

    fn take_idle(&self, settings: EncoderSettings) -> Option<Encoder> {
        let mut idle = self.lock_idle();
        let at = idle.iter().rposition(|(known, _)| *known == settings)?;
        Some(idle.swap_remove(at).1)
    }

    fn lock_idle(&self) -> MutexGuard<'_, Vec<(EncoderSettings, Encoder)>> {
        let idle = &self.shared.idle;
        idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The memory of an encoder, and of one piece before and behind it.
fn lease_bytes(settings: EncoderSettings) -> usize {
    settings.memory_bytes() + 2 * max_piece_bytes(settings.size)
}

impl Drop for EncoderLease {
    fn drop(&mut self) {
        let shared = &self.owner.shared;
        shared
            .used_bytes
            .fetch_sub(self.counted_bytes, Ordering::Relaxed);
        let encoder = std::mem::replace(&mut self.encoder, Encoder::Ended);
        if matches!(encoder, Encoder::Gzip(_) | Encoder::Zstd(_)) {
            let mut idle = self.owner.lock_idle();
            if idle.len() >= MAX_IDLE_ENCODERS {
                idle.remove(0);
            }
            idle.push((self.settings, encoder));
        }
    }
}

#[cfg(test)]
mod tests {
    use penstock_config::ContentCoding;

    use super::EncoderUse::KnownLength;
    use super::*;
    use crate::encoder::{EncoderSize, Flush};

    const GZIP: EncoderSettings = EncoderSettings {
        coding: ContentCoding::Gzip,
        level: 5,
        size: EncoderSize::Full,
    };

    #[test]
    fn encoders_have_a_bound_of_memory_and_give_it_back() {
        let compressor = Compressor::default();
        let most = MAX_TOTAL_BYTES / lease_bytes(GZIP);
        let leases: Vec<_> = (0..most)
            .map(|_| compressor.acquire(GZIP, None, KnownLength).unwrap())
            .collect();
        assert!(compressor.acquire(GZIP, None, KnownLength).is_none());
        let used = compressor.snapshot().memory_bytes;
        assert_eq!(used, (most * lease_bytes(GZIP)) as u64);
        drop(leases);
        assert_eq!(compressor.snapshot().memory_bytes, 0);
        assert!(compressor.lock_idle().len() <= MAX_IDLE_ENCODERS);
        assert!(compressor.acquire(GZIP, None, KnownLength).is_some());
    }

    #[test]
    fn long_streams_leave_memory_to_others() {
        let compressor = Compressor::default();
        let fill = |purpose| -> Vec<_> {
            std::iter::from_fn(|| compressor.acquire(GZIP, None, purpose)).collect()
        };
        let all = MAX_TOTAL_BYTES / lease_bytes(GZIP);
        let events = fill(EncoderUse::Events);
        let streams = fill(EncoderUse::UnknownLength);
        let known = fill(KnownLength);
        assert!(events.len().abs_diff(all / 2) <= 1, "{}", events.len());
        assert!(streams.len().abs_diff(all / 4) <= 1, "{}", streams.len());
        assert!(known.len().abs_diff(all / 4) <= 1, "{}", known.len());
        // A small body needs none of it.
        let used = compressor.snapshot().memory_bytes;
        let at_once = compressor.acquire(GZIP, Some(5), EncoderUse::AtOnce);
        assert!(at_once.is_some());
        assert_eq!(compressor.snapshot().memory_bytes, used);
        drop((events, streams, known, at_once));
        assert_eq!(compressor.snapshot().memory_bytes, 0);
    }

    #[test]
    fn an_encoder_is_used_again_with_the_same_settings_only() {
        let compressor = Compressor::default();
        let better = EncoderSettings { level: 9, ..GZIP };
        drop(compressor.acquire(GZIP, None, KnownLength));
        assert_eq!(compressor.lock_idle().len(), 1);
        drop(compressor.acquire(better, None, KnownLength));
        assert_eq!(compressor.lock_idle().len(), 2);
        drop(compressor.acquire(GZIP, None, KnownLength));
        assert_eq!(compressor.lock_idle().len(), 2);
    }

    #[test]
    fn an_abandoned_body_leaves_nothing_to_the_next() {
        for coding in [ContentCoding::Gzip, ContentCoding::Zstd] {
            let settings = EncoderSettings {
                coding,
                level: 3,
                size: EncoderSize::Full,
            };
            let compressor = Compressor::default();
            let mut first = compressor.acquire(settings, None, KnownLength).unwrap();
            first
                .encoder
                .encode(b"secret of another", Flush::None, &mut Vec::new())
                .unwrap();
            drop(first);
            let mut output = Vec::new();
            let mut second = compressor.acquire(settings, Some(4), KnownLength).unwrap();
            second
                .encoder
                .encode(b"mine", Flush::Finish, &mut output)
                .unwrap();
            assert_eq!(crate::testing::decode(coding, &output), b"mine");
        }
    }
}
