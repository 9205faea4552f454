//! A chunked body in pieces decodes like the whole: same content, trailers and end. The first byte
//! is the number of following bytes with piece lengths; the rest is the body.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_http::{BodyDecoder, BodyError, BodyFraming};

#[derive(Debug, PartialEq)]
struct Outcome {
    content: Vec<u8>,
    trailers: Vec<u8>,
    consumed: usize,
    done: bool,
}

fn read(body: &[u8], ends: impl Iterator<Item = usize>) -> Result<Outcome, BodyError> {
    let mut decoder = BodyDecoder::new(BodyFraming::Chunked);
    let (mut content, mut consumed) = (Vec::new(), 0);
    for end in ends {
        while consumed < end && !decoder.is_done() {
            let input = &body[consumed..end];
            let found = decoder.decode(input)?;
            assert!(found.consumed > 0 && found.consumed <= input.len());
            assert!(found.content.end <= found.consumed);
            assert_eq!(found.is_done, decoder.is_done());
            content.extend_from_slice(&input[found.content]);
            consumed += found.consumed;
        }
    }
    let trailers = decoder.trailer_lines().to_vec();
    Ok(Outcome {
        content,
        trailers,
        consumed,
        done: decoder.is_done(),
    })
}

fuzz_target!(|data: &[u8]| {
    let Some((&count, data)) = data.split_first() else {
        return;
    };
    let (pieces, body) = data.split_at(usize::from(count % 16).min(data.len()));
    let mut received = 0;
    let ends = pieces.iter().map(|&piece| {
        received = (received + usize::from(piece)).min(body.len());
        received
    });
    let whole = read(body, [body.len()].into_iter());
    let pieced = read(body, ends.chain([body.len()]));
    assert_eq!(whole, pieced);
    if let Ok(outcome) = whole {
        assert!(outcome.content.len() <= outcome.consumed);
        assert!(!outcome.done || body[..outcome.consumed].ends_with(b"\r\n"));
    }
});
