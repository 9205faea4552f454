//! Arbitrary bytes as the response of an application server, whole and in pieces: no panic, the
//! same result for every split, and the guarantees that a relay relies on. The first byte selects
//! the format, the second is the number of following bytes with piece lengths.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_wire::gateway::{
    GatewayError, GatewayEvent, GatewayHead, GatewayHeadLimits, ResponseDecoder,
};
use penstock_wire::{ajp, cgi, fastcgi};

const LIMITS: GatewayHeadLimits = GatewayHeadLimits {
    max_head_bytes: 512,
    max_fields: 8,
};

#[derive(Debug, Default, PartialEq)]
struct Outcome {
    head: Option<GatewayHead>,
    body: Vec<u8>,
    log: Vec<u8>,
    wanted: Vec<usize>,
    end: Option<bool>,
}

impl Outcome {
    fn record(&mut self, event: GatewayEvent<'_>) {
        assert_eq!(self.end, None, "an event behind the end");
        match event {
            GatewayEvent::Head(head) => assert_eq!(self.head.replace(head), None, "two heads"),
            GatewayEvent::Body(bytes) => {
                assert!(self.head.is_some() && !bytes.is_empty());
                self.body.extend_from_slice(bytes);
            }
            GatewayEvent::Log(bytes) => self.log.extend_from_slice(bytes),
            GatewayEvent::BodyRequested(len) => self.wanted.push(len),
            GatewayEvent::End { reusable } => self.end = Some(reusable),
        }
    }

    fn check(&self, answers_head: bool) {
        let Some(head) = &self.head else {
            assert_eq!(self.end, None, "an end without a head");
            return;
        };
        assert!((200..=599).contains(&head.status.code()));
        assert!(head.fields.iter().count() <= LIMITS.max_fields);
        for (name, value) in head.fields.iter() {
            assert!(!name.is_empty());
            assert!(value.iter().all(|&byte| byte == b'\t' || byte >= b' '));
        }
        if answers_head || head.status.forbids_body() {
            assert!(self.body.is_empty());
        } else if let Some(length) = head.content_length {
            let found = self.body.len() as u64;
            assert!(found <= length && (self.end.is_none() || found == length));
        }
    }
}

fn read(
    mut decoder: ResponseDecoder,
    mut input: &[u8],
    pieces: &[u8],
) -> (Outcome, Result<(), GatewayError>) {
    let mut outcome = Outcome::default();
    let lens = pieces
        .iter()
        .map(|&len| usize::from(len))
        .chain([input.len()]);
    for len in lens {
        let (mut piece, rest) = input.split_at(len.min(input.len()));
        input = rest;
        loop {
            let decoded = match decoder.decode(piece) {
                Ok(decoded) => decoded,
                Err(error) => return (outcome, Err(error)),
            };
            piece = &piece[decoded.consumed..];
            let Some(event) = decoded.event else {
                assert!(piece.is_empty(), "bytes left over without an event");
                break;
            };
            assert!(decoded.consumed > 0);
            outcome.record(event);
        }
    }
    match decoder.decode_eof() {
        Ok(event) => event.into_iter().for_each(|it| outcome.record(it)),
        Err(error) => return (outcome, Err(error)),
    }
    assert!(outcome.end.is_some());
    (outcome, Ok(()))
}

fuzz_target!(|data: &[u8]| {
    let Some((&[choice, count], data)) = data.split_first_chunk::<2>() else {
        return;
    };
    let (pieces, input) = data.split_at(usize::from(count % 16).min(data.len()));
    let answers_head = choice & 4 != 0;
    let new = || match choice & 3 {
        0 => ResponseDecoder::Cgi(cgi::CgiDecoder::new(LIMITS, answers_head)),
        1 => ResponseDecoder::Ajp(ajp::AjpDecoder::new(LIMITS, answers_head)),
        _ => ResponseDecoder::FastCgi(fastcgi::FastCgiDecoder::new(LIMITS, answers_head)),
    };
    let whole = read(new(), input, &[]);
    let pieced = read(new(), input, pieces);
    whole.0.check(answers_head);
    pieced.0.check(answers_head);
    assert_eq!(whole.1, pieced.1);
    // The amount forwarded before an error may depend on the pieces.
    if whole.1.is_ok() {
        assert_eq!(whole.0, pieced.0);
    }
    for answer in [
        fastcgi::parse_probe_response(input),
        ajp::parse_probe_response(input),
    ] {
        if let Ok(Some(len)) = answer {
            assert!(len > 0 && len <= input.len());
        }
    }
});
