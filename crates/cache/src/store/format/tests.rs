//! Round trips of the file format, and refused input.

use super::*;
use crate::store::tests::meta_of;

fn full_meta() -> ObjectMeta {
    let mut meta = meta_of("https://host/path?x=1\0part");
    meta.fields = FieldBlock::new();
    meta.fields.push("Content-Type", b"text/plain").unwrap();
    meta.fields.push("X-Empty", b"").unwrap();
    meta.fields.push("X-Bytes", b"caf\xe9 \t!").unwrap();
    meta.lifetime = Lifetime::from_words([1, 7, u64::MAX, 1 << 63, 0b1011]).unwrap();
    meta.vary_names = vec!["accept".to_owned(), "x-y".to_owned()];
    meta.variant = vec![0, 255, b'\n'];
    meta.tags = vec!["news".to_owned(), String::new()];
    meta.length = 123_456;
    meta
}

#[test]
fn a_meta_comes_back_as_it_was() {
    let mut sliced = full_meta();
    sliced.slice_set = Some(SliceSet {
        id: u128::MAX - 7,
        total_length: 1 << 40,
    });
    for meta in [full_meta(), meta_of("http://h/"), sliced] {
        let bytes = encode_meta(&meta);
        let size = slot_bytes(bytes.len(), Some(1)).unwrap();
        let mut slots = encode_slot(1, &bytes, size).unwrap();
        assert_eq!(slots.len(), size as usize);
        slots.resize(2 * size as usize, 0);
        assert_eq!(decode_slots(&slots, size), Ok((1, meta)));
    }
}

#[test]
fn fields_for_the_front_end_and_the_hub_are_not_read_from_disk() {
    let mut stored = full_meta();
    for name in ["Grip-Hold", "x-accel-redirect", "X-Sendfile-Type"] {
        stored.fields.push(name, b"a").unwrap();
    }
    let bytes = encode_meta(&stored);
    let size = slot_bytes(bytes.len(), Some(1)).unwrap();
    let slots = encode_slot(1, &bytes, size).unwrap();
    assert_eq!(decode_slots(&slots, size), Ok((1, full_meta())));
}

#[test]
fn the_newest_whole_slot_counts() {
    let (old, mut new) = (full_meta(), full_meta());
    new.lifetime.fresh_for = Duration::from_secs(99);
    let size = slot_bytes(encode_meta(&old).len(), Some(1)).unwrap();
    let a = encode_slot(1, &encode_meta(&old), size).unwrap();
    let b = encode_slot(2, &encode_meta(&new), size).unwrap();
    let both = [a.clone(), b.clone()].concat();
    assert_eq!(decode_slots(&both, size), Ok((2, new)));
    // A crash during the second write leaves it incomplete.
    for torn in (0..b.len()).step_by(7) {
        let mut slots = both.clone();
        slots[size as usize + torn..].fill(0);
        let found = decode_slots(&slots, size).unwrap();
        assert!(found.0 == 1 && found.1 == old || found.0 == 2, "{torn}");
    }
    assert_eq!(
        decode_slots(&vec![0; 2 * size as usize], size),
        Err(FormatError::Damaged)
    );
}

#[test]
fn a_changed_byte_is_noticed_and_no_bytes_panic() {
    let preamble = Preamble {
        slot_bytes: 512,
        length: 99,
        checksum: 7,
        hash: 1 << 100,
    };
    let bytes = preamble.encode();
    assert_eq!(Preamble::decode(&bytes), Ok(preamble));
    assert_eq!(preamble.file_bytes(), 64 + 1024 + 99);
    for at in 0..56 {
        let mut wrong = bytes;
        wrong[at] ^= 0x10;
        assert!(Preamble::decode(&wrong).is_err(), "byte {at}");
        assert!(Preamble::decode(&bytes[..at]).is_err());
    }
    let mut other = bytes;
    other[8] = 2;
    assert_eq!(
        Preamble::decode(&other),
        Err(FormatError::UnsupportedVersion)
    );

    let meta = encode_meta(&full_meta());
    let size = slot_bytes(meta.len(), Some(1)).unwrap();
    let slot = encode_slot(1, &meta, size).unwrap();
    for at in 0..SLOT_HEAD_BYTES + meta.len() {
        let mut wrong = slot.clone();
        wrong[at] ^= 0x81;
        assert!(decode_slots(&wrong, size).is_err(), "byte {at}");
    }
    // Without the checksum no content may panic.
    for at in 0..meta.len() {
        let mut wrong = meta.clone();
        wrong[at] = 0xff;
        let _ = decode_meta(&wrong);
        assert!(decode_meta(&meta[..at]).is_err());
    }
    assert!(decode_slots(&[], 0).is_err());
    assert!(slot_bytes(MAX_META_BYTES + 1, None).is_none());
    for meta in [0, 1, 500, 1400, 1500, 5000, MAX_META_BYTES] {
        for declared in [None, Some(MAX_PACKED_BODY + 1)] {
            let slot = slot_bytes(meta, declared).unwrap();
            assert_eq!(body_offset(slot) % 4096, 0, "{meta}");
            assert!(slot >= slot_bytes(meta, Some(0)).unwrap(), "{meta}");
        }
    }
}
