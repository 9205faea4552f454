//! Encoders against the decoders of the same codings.

use super::*;
use crate::testing::{decode, decode_so_far, json};

const CODINGS: [ContentCoding; 3] = [
    ContentCoding::Zstd,
    ContentCoding::Brotli,
    ContentCoding::Gzip,
];

fn full(coding: ContentCoding, level: u32) -> EncoderSettings {
    EncoderSettings {
        coding,
        level,
        size: EncoderSize::Full,
    }
}

fn default_settings(coding: ContentCoding) -> EncoderSettings {
    let level = match coding {
        ContentCoding::Zstd => 3,
        ContentCoding::Brotli => 4,
        ContentCoding::Gzip => 5,
    };
    full(coding, level)
}

fn encode_all(settings: EncoderSettings, body: &[u8]) -> Vec<u8> {
    let mut encoder = Encoder::new(settings, Some(body.len() as u64)).unwrap();
    let mut output = Vec::new();
    encoder.encode(body, Flush::Finish, &mut output).unwrap();
    output
}

#[test]
fn every_level_decodes_to_what_went_in() {
    let body = json(50_000);
    for coding in CODINGS {
        let levels = match coding {
            ContentCoding::Zstd => 1..=12,
            ContentCoding::Brotli => 0..=6,
            ContentCoding::Gzip => 1..=9,
        };
        for level in levels {
            let settings = full(coding, level);
            let encoded = encode_all(settings, &body);
            assert!(encoded.len() < body.len() / 3, "{settings:?}");
            assert!(decode(coding, &encoded) == body, "{settings:?}");
        }
    }
}

#[test]
fn bodies_of_any_size_go_through() {
    for coding in CODINGS {
        for len in [1, 2, 1023, 65_536, 65_537, 1 << 20] {
            let body = json(len);
            let encoded = encode_all(default_settings(coding), &body);
            assert!(decode(coding, &encoded) == body, "{coding:?} {len}");
        }
    }
}

#[test]
fn after_a_flush_a_decoder_has_everything() {
    for coding in CODINGS {
        let mut encoder = Encoder::new(default_settings(coding), None).unwrap();
        let (mut output, mut body) = (Vec::new(), Vec::new());
        for number in 0..300 {
            let piece = format!("data: {number}\n\n").into_bytes();
            body.extend_from_slice(&piece);
            encoder.encode(&piece, Flush::None, &mut output).unwrap();
            encoder.encode(&[], Flush::Sync, &mut output).unwrap();
            let before = output.len();
            encoder.encode(&[], Flush::Sync, &mut output).unwrap();
            // A second flush may add an empty block, and no more.
            assert!(output.len() - before <= 8, "{coding:?}");
            assert!(
                decode_so_far(coding, &output) == body,
                "{coding:?} {number}"
            );
        }
        encoder.encode(&[], Flush::Finish, &mut output).unwrap();
        assert!(decode(coding, &output) == body, "{coding:?}");
    }
}

#[test]
fn an_ended_encoder_refuses_more() {
    let mut encoder = Encoder::new(default_settings(ContentCoding::Brotli), None).unwrap();
    encoder
        .encode(b"a", Flush::Finish, &mut Vec::new())
        .unwrap();
    assert!(encoder.encode(b"b", Flush::None, &mut Vec::new()).is_err());
}

#[test]
fn a_zstd_encoder_keeps_to_its_memory_and_window() {
    for (level, size) in (1..=12).flat_map(|level| {
        let sizes = [EncoderSize::Full, EncoderSize::Small];
        sizes.map(|size| (level, size))
    }) {
        let settings = EncoderSettings {
            size,
            ..full(ContentCoding::Zstd, level)
        };
        let mut encoder = Encoder::new(settings, None).unwrap();
        let mut output = Vec::new();
        let body = json(4 << 20);
        encoder.encode(&body, Flush::Sync, &mut output).unwrap();
        let Encoder::Zstd(context) = &encoder else {
            panic!("another encoder");
        };
        let taken = context.sizeof();
        assert!(taken <= settings.memory_bytes(), "{settings:?}: {taken}");
        // RFC 8878 §3.1.1.1.2: the byte behind the descriptor has the exponent of the window.
        let window_log = u32::from(output[5] >> 3) + 10;
        assert_eq!(window_log, settings.zstd_logs().0, "{settings:?}");
        assert!(
            decode_so_far(ContentCoding::Zstd, &output) == body,
            "{settings:?}"
        );
    }
}

#[test]
fn the_window_of_brotli_never_leads_to_its_largest_tables() {
    for level in 0..=6 {
        for size in [EncoderSize::Full, EncoderSize::Small] {
            for body in [Some(1), Some(60_000), Some(1 << 30), None] {
                let settings = EncoderSettings {
                    size,
                    ..full(ContentCoding::Brotli, level)
                };
                let window_log = brotli_window_log(settings, body);
                assert!((16..=BROTLI_WINDOW_LOG).contains(&window_log));
                assert!(level <= 4 || window_log > 16, "{settings:?} {body:?}");
            }
        }
    }
}
