//! The byte format of an object's file. Pure.
//!
//! ```text
//! preamble   magic, version, slot size, body length, body checksum, key hash, checksum of these
//! slot A     sequence number, length, checksum, meta
//! slot B     the same
//! body
//! ```
//!
//! Integers are little endian; checksums are XXH3-64. The metadata is in the intact slot with the
//! highest sequence number. Freshening writes the other slot, so that a crash at any moment leaves
//! one of them.
//!
//! # Invariants
//!
//! - Only bytes exactly as written are decoded.
//! - No input panics or allocates much memory.

use std::sync::Arc;
use std::time::Duration;

use penstock_exchange::field_policy::is_internal_field;
use penstock_http::caching::{LIFETIME_WORD_COUNT, Lifetime};
use penstock_http::{FieldBlock, Status};
use twox_hash::XxHash3_64;

use super::{ObjectMeta, SliceSet};

pub(crate) const PREAMBLE_BYTES: usize = 64;

/// Larger metadata is not stored: more than the largest head that is read.
pub(crate) const MAX_META_BYTES: usize = 1 << 20;

const MAGIC: &[u8; 8] = b"pnstkobj";
const VERSION: u32 = 1;
const SLOT_HEAD_BYTES: usize = 24;

/// Bodies up to this size follow their slots without padding: they are copied, and the space
/// counts.
const MAX_PACKED_BODY: u64 = 16 * 1024;

const PAGE_BYTES: usize = 4096;

/// Space for further words of the lifetime.
const UNUSED: [u8; 24] = [0; 24];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Preamble {
    pub(crate) slot_bytes: u32,
    pub(crate) length: u64,
    pub(crate) checksum: u64,
    pub(crate) hash: u128,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FormatError {
    #[error("it has another format version")]
    UnsupportedVersion,
    #[error("it is damaged")]
    Damaged,
}

impl Preamble {
    pub(crate) fn body_offset(&self) -> u64 {
        body_offset(self.slot_bytes)
    }

    pub(crate) fn file_bytes(&self) -> u64 {
        self.body_offset() + self.length
    }

    pub(crate) fn encode(&self) -> [u8; PREAMBLE_BYTES] {
        let mut out = [0; PREAMBLE_BYTES];
        out[..8].copy_from_slice(MAGIC);
        out[8..12].copy_from_slice(&VERSION.to_le_bytes());
        out[12..16].copy_from_slice(&self.slot_bytes.to_le_bytes());
        out[16..24].copy_from_slice(&self.length.to_le_bytes());
        out[24..32].copy_from_slice(&self.checksum.to_le_bytes());
        out[32..48].copy_from_slice(&self.hash.to_le_bytes());
        let sum = XxHash3_64::oneshot(&out[..48]);
        out[48..56].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Decodes the preamble from a file's first bytes.
    ///
    /// # Errors
    /// Fails if the bytes are not what [`Preamble::encode`] wrote.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut input = ByteReader(bytes);
        if input.take(8)? != MAGIC {
            return Err(FormatError::Damaged);
        }
        if input.u32()? != VERSION {
            return Err(FormatError::UnsupportedVersion);
        }
        let preamble = Self {
            slot_bytes: input.u32()?,
            length: input.u64()?,
            checksum: input.u64()?,
            hash: u128::from_le_bytes(input.array()?),
        };
        let is_whole = input.u64()? == XxHash3_64::oneshot(&bytes[..48]);
        let is_sound =
            preamble.slot_bytes as usize <= 2 * MAX_META_BYTES && preamble.length < 1 << 62;
        match is_whole && is_sound {
            true => Ok(preamble),
            false => Err(FormatError::Damaged),
        }
    }
}

/// Offset of the body after slots of that size.
pub(crate) fn body_offset(slot_bytes: u32) -> u64 {
    PREAMBLE_BYTES as u64 + 2 * u64::from(slot_bytes)
}

/// The size of a slot for `meta` bytes of metadata, with a quarter more for freshening. A body sent
/// from the page cache begins at a page boundary; otherwise it would span one more page and cost
/// one more packet and one more wake-up of its receiver. `declared` is the body's length, if known.
pub(crate) fn slot_bytes(meta: usize, declared: Option<u64>) -> Option<u32> {
    let bytes = (SLOT_HEAD_BYTES + meta + meta / 4 + 128).next_multiple_of(64);
    let is_small = declared.is_some_and(|length| length <= MAX_PACKED_BODY);
    let bytes = match is_small {
        true => bytes,
        false => (PREAMBLE_BYTES + 2 * bytes).next_multiple_of(PAGE_BYTES) / 2 - PREAMBLE_BYTES / 2,
    };
    (meta <= MAX_META_BYTES).then(|| u32::try_from(bytes).ok())?
}

/// Encodes a slot, padded to its size. `None` if the metadata is too large for it.
pub(crate) fn encode_slot(sequence: u64, meta: &[u8], slot_bytes: u32) -> Option<Vec<u8>> {
    let size = slot_bytes as usize;
    let mut out = Vec::with_capacity(size);
    out.extend_from_slice(&sequence.to_le_bytes());
    out.extend_from_slice(&(meta.len() as u64).to_le_bytes());
    out.extend_from_slice(&slot_checksum(sequence, meta).to_le_bytes());
    out.extend_from_slice(meta);
    (out.len() <= size).then(|| {
        out.resize(size, 0);
        out
    })
}

/// Decodes the newest intact metadata of a file's two slots, with its sequence number.
///
/// # Errors
/// Fails if neither slot is intact.
pub(crate) fn decode_slots(
    slots: &[u8],
    slot_bytes: u32,
) -> Result<(u64, ObjectMeta), FormatError> {
    let slots = slots.chunks(slot_bytes.max(1) as usize).take(2);
    let intact = slots.filter_map(|slot| parse_slot(slot).ok());
    let newest = intact.max_by_key(|(sequence, _)| *sequence);
    let (sequence, meta) = newest.ok_or(FormatError::Damaged)?;
    Ok((sequence, decode_meta(meta)?))
}

fn parse_slot(slot: &[u8]) -> Result<(u64, &[u8]), FormatError> {
    let mut input = ByteReader(slot);
    let (sequence, length, sum) = (input.u64()?, input.u64()?, input.u64()?);
    let meta = input.take(usize::try_from(length).map_err(|_| FormatError::Damaged)?)?;
    match sequence > 0 && sum == slot_checksum(sequence, meta) {
        true => Ok((sequence, meta)),
        false => Err(FormatError::Damaged),
    }
}

fn slot_checksum(sequence: u64, meta: &[u8]) -> u64 {
    XxHash3_64::oneshot_with_seed(sequence, meta)
}

pub(crate) fn encode_meta(meta: &ObjectMeta) -> Vec<u8> {
    let mut out = Vec::with_capacity(meta.fields.as_bytes().len() + meta.key.len() + 256);
    out.extend_from_slice(&meta.status.code().to_le_bytes());
    for word in meta.lifetime.to_words() {
        out.extend_from_slice(&word.to_le_bytes());
    }
    out.extend_from_slice(&UNUSED);
    for time in [meta.request_time, meta.response_time] {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        out.extend_from_slice(&micros.to_le_bytes());
    }
    out.extend_from_slice(&meta.length.to_le_bytes());
    put(&mut out, &meta.key);
    put(&mut out, &meta.variant);
    for names in [&meta.vary_names, &meta.tags] {
        put_count(&mut out, names.len());
        for name in names {
            put(&mut out, name.as_bytes());
        }
    }
    put_count(&mut out, meta.fields.iter().count());
    for (name, value) in meta.fields.iter() {
        put(&mut out, name.as_bytes());
        put(&mut out, value);
    }
    // Optional and last, so that files without it are read as well.
    if let Some(sliced) = meta.slice_set {
        out.extend_from_slice(&sliced.id.to_le_bytes());
        out.extend_from_slice(&sliced.total_length.to_le_bytes());
    }
    out
}

fn decode_meta(bytes: &[u8]) -> Result<ObjectMeta, FormatError> {
    let mut input = ByteReader(bytes);
    let status = Status::new(u16::from_le_bytes(input.array()?)).ok_or(FormatError::Damaged)?;
    let mut words = [0; LIFETIME_WORD_COUNT];
    for word in &mut words {
        *word = input.u64()?;
    }
    let lifetime = Lifetime::from_words(words).ok_or(FormatError::Damaged)?;
    input.take(UNUSED.len())?;
    let request_time = Duration::from_micros(input.u64()?);
    let response_time = Duration::from_micros(input.u64()?);
    let length = input.u64()?;
    let key: Arc<[u8]> = input.string()?.into();
    let variant = input.string()?.to_vec();
    let vary_names = input.names()?;
    let tags = input.names()?;
    let mut fields = FieldBlock::with_capacity(input.0.len());
    for _ in 0..input.u32()? {
        let (name, value) = (input.text()?, input.string()?);
        // An earlier version stored internal fields, which clients must not get.
        if !is_internal_field(name.as_bytes()) {
            fields.push(name, value).map_err(|_| FormatError::Damaged)?;
        }
    }
    let slice_set = match input.0.is_empty() {
        true => None,
        false => Some(SliceSet {
            id: u128::from_le_bytes(input.array()?),
            total_length: input.u64()?,
        }),
    };
    if !input.0.is_empty() {
        return Err(FormatError::Damaged);
    }
    Ok(ObjectMeta {
        key,
        status,
        fields: fields.freeze(),
        lifetime,
        request_time,
        response_time,
        vary_names,
        variant,
        tags,
        length,
        slice_set,
    })
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    put_count(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// Counts are far below 2^32: metadata beyond [`MAX_META_BYTES`] is refused.
fn put_count(out: &mut Vec<u8>, count: usize) {
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    out.extend_from_slice(&count.to_le_bytes());
}

/// The bytes still to be decoded.
struct ByteReader<'a>(&'a [u8]);

impl<'a> ByteReader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], FormatError> {
        let (head, rest) = self.0.split_at_checked(count).ok_or(FormatError::Damaged)?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], FormatError> {
        self.take(N)?.try_into().map_err(|_| FormatError::Damaged)
    }

    fn u32(&mut self) -> Result<u32, FormatError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> Result<u64, FormatError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn string(&mut self) -> Result<&'a [u8], FormatError> {
        let length = self.u32()? as usize;
        self.take(length)
    }

    fn text(&mut self) -> Result<&'a str, FormatError> {
        std::str::from_utf8(self.string()?).map_err(|_| FormatError::Damaged)
    }

    fn names(&mut self) -> Result<Vec<String>, FormatError> {
        let mut names = Vec::new();
        for _ in 0..self.u32()? {
            names.push(self.text()?.to_owned());
        }
        Ok(names)
    }
}

#[cfg(test)]
mod tests;
