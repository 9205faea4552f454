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
use crate::stream::MAX_PIECE_BYTES;

/// Memory of all bodies that are being compressed: 200 streams of `gzip`. The streams of an
/// application that never end need it longest, and are sent without a coding beyond it.
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
const MIN_LEASE_BYTES: usize = 512 << 10;

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
    ) -> Option<EncoderLease> {
        let bytes = lease_bytes(settings);
        let used = self.shared.used_bytes.fetch_add(bytes, Ordering::Relaxed);
        // From here on it gives its share back by itself.
        let mut lease = EncoderLease {
            settings,
            encoder: Encoder::Ended,
            owner: self.clone(),
        };
        if used + bytes > MAX_TOTAL_BYTES {
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
    settings.memory_bytes() + 2 * MAX_PIECE_BYTES
}

impl Drop for EncoderLease {
    fn drop(&mut self) {
        let bytes = lease_bytes(self.settings);
        let shared = &self.owner.shared;
        shared.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
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

    use super::*;
    use crate::encoder::Flush;

    const GZIP: EncoderSettings = EncoderSettings {
        coding: ContentCoding::Gzip,
        level: 5,
    };

    #[test]
    fn encoders_have_a_bound_of_memory_and_give_it_back() {
        let compressor = Compressor::default();
        let most = MAX_TOTAL_BYTES / lease_bytes(GZIP);
        let leases: Vec<_> = (0..most)
            .map(|_| compressor.acquire(GZIP, None).unwrap())
            .collect();
        assert!(compressor.acquire(GZIP, None).is_none());
        let used = compressor.snapshot().memory_bytes;
        assert_eq!(used, (most * lease_bytes(GZIP)) as u64);
        drop(leases);
        assert_eq!(compressor.snapshot().memory_bytes, 0);
        assert!(compressor.lock_idle().len() <= MAX_IDLE_ENCODERS);
        assert!(compressor.acquire(GZIP, None).is_some());
    }

    #[test]
    fn an_encoder_is_used_again_with_the_same_settings_only() {
        let compressor = Compressor::default();
        let better = EncoderSettings { level: 9, ..GZIP };
        drop(compressor.acquire(GZIP, None));
        assert_eq!(compressor.lock_idle().len(), 1);
        drop(compressor.acquire(better, None));
        assert_eq!(compressor.lock_idle().len(), 2);
        drop(compressor.acquire(GZIP, None));
        assert_eq!(compressor.lock_idle().len(), 2);
    }

    #[test]
    fn an_abandoned_body_leaves_nothing_to_the_next() {
        for coding in [ContentCoding::Gzip, ContentCoding::Zstd] {
            let settings = EncoderSettings { coding, level: 3 };
            let compressor = Compressor::default();
            let mut first = compressor.acquire(settings, None).unwrap();
            first
                .encoder
                .encode(b"secret of another", Flush::None, &mut Vec::new())
                .unwrap();
            drop(first);
            let mut output = Vec::new();
            let mut second = compressor.acquire(settings, Some(4)).unwrap();
            second
                .encoder
                .encode(b"mine", Flush::Finish, &mut output)
                .unwrap();
            assert_eq!(crate::testing::decode(coding, &output), b"mine");
        }
    }
}
