//! Entry points to the file decoders for inputs with correct checksums: see `crate::fuzzing`.

use super::format::{self, PREAMBLE_BYTES, Preamble};
use super::maintenance::purge_journal;

/// See [`crate::fuzzing::read_object`].
pub(crate) fn read_object(bytes: &[u8]) {
    let slots = bytes.get(PREAMBLE_BYTES..).unwrap_or_default();
    if let Ok(preamble) = Preamble::decode(bytes) {
        assert_eq!(preamble.encode()[..56], bytes[..56]);
        // Damaged slots are an ordinary error.
        let _ = format::decode_slots(slots, preamble.slot_bytes);
    }
    let Some(slot_bytes) = format::slot_bytes(bytes.len(), None) else {
        return;
    };
    let Some(slot) = format::encode_slot(1, bytes, slot_bytes) else {
        return;
    };
    if let Ok((_, meta)) = format::decode_slots(&slot, slot_bytes) {
        let again = format::encode_meta(&meta);
        let slot_bytes = format::slot_bytes(again.len(), None).unwrap_or_default();
        let slot = format::encode_slot(1, &again, slot_bytes).unwrap_or_default();
        let read = format::decode_slots(&slot, slot_bytes);
        assert_eq!(read.ok().map(|(_, meta)| meta), Some(meta));
    }
}

/// See [`crate::fuzzing::read_journal`].
pub(crate) fn read_journal(bytes: &[u8]) {
    // A damaged journal decodes to `None`.
    drop(purge_journal::decode(bytes));
    let mut whole = vec![0; 8];
    whole.extend_from_slice(bytes);
    let sum = twox_hash::XxHash3_64::oneshot(bytes);
    whole[..8].copy_from_slice(&sum.to_le_bytes());
    if let Some(purges) = purge_journal::decode(&whole)
        && !purges.is_empty()
    {
        assert_eq!(purge_journal::encode(&purges), whole);
    }
}

/// The initial content of a slot.
#[cfg(test)]
pub(crate) fn sample_meta_bytes() -> Vec<u8> {
    format::encode_meta(&super::tests::meta_of("http://a/b?c"))
}
