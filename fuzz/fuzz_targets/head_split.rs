//! A head in pieces parses like the whole. The first byte is the number of following bytes with
//! piece lengths; the rest is the stream.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_http::{HeadLimits, HeadScanner, ParseProgress, parse_head};

fuzz_target!(|data: &[u8]| {
    let Some((&count, data)) = data.split_first() else {
        return;
    };
    let (pieces, stream) = data.split_at(usize::from(count % 16).min(data.len()));
    let limits = HeadLimits {
        max_target_bytes: 64,
        max_head_bytes: 512,
        max_fields: 8,
    };
    let whole = parse_head(stream, &limits);

    let mut scanner = HeadScanner::new();
    let mut received = 0;
    let ends = pieces.iter().map(|&piece| {
        received = (received + usize::from(piece)).min(stream.len());
        received
    });
    let mut outcome = Ok(ParseProgress::Partial);
    for end in ends.chain([stream.len()]) {
        outcome = scanner.scan(&stream[..end], &limits);
        if outcome != Ok(ParseProgress::Partial) {
            break;
        }
    }
    match (whole, outcome) {
        (Ok(whole), Ok(pieced)) => {
            assert_eq!(whole, pieced);
            if let ParseProgress::Complete((head, consumed)) = pieced {
                assert!(consumed <= stream.len());
                assert!(head.field_count() <= limits.max_fields);
            }
        }
        // Which of two errors is found first may depend on the pieces, but not whether there is
        // one.
        (Err(_), Err(_)) => {}
        (whole, pieced) => panic!("{whole:?} in one piece, {pieced:?} in several"),
    }
});
