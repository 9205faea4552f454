//! Replays `vectors/*.txt`, the examples of the protocol that the Python and Ruby tests replay too.
//!
//! A file holds blocks of `key: value` lines, parted by empty lines; `#` opens a comment. `hex`,
//! `python`, `ruby` and `both` are bytes, all other values but plain words are JSON.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "helpers of tests"
)]

use std::collections::HashMap;
use std::fmt::Write as _;

use penstock_wire::control::{
    SocketKind, encode_dismiss, encode_fork, encode_promote, encode_slots,
};
use penstock_wire::worker_encoder::{
    encode_body, encode_fd_request, encode_file, encode_head, encode_hello, encode_hijack,
    encode_pull, encode_text,
};
use penstock_wire::{
    ControlDecoder, ControlEvent, Dialect, EnvironEncoder, FrameHeader, FrameKind,
    RequestBodySource, SlotDecoder, SlotEvent, WireError, encode_cancel, encode_collect_garbage,
    encode_input, encode_input_aborted, encode_request, frame,
};
use serde_json::Value;

type Block = HashMap<String, String>;

fn blocks(file: &str) -> Vec<Block> {
    let path = format!("{}/vectors/{file}.txt", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let mut blocks = vec![Block::new()];
    for line in text.lines() {
        if line.is_empty() {
            blocks.push(Block::new());
        } else if !line.starts_with('#') {
            let (key, value) = line.split_once(": ").unwrap();
            blocks
                .last_mut()
                .unwrap()
                .insert(key.to_owned(), value.to_owned());
        }
    }
    blocks.retain(|block| !block.is_empty());
    assert!(!blocks.is_empty());
    blocks
}

fn json(block: &Block, key: &str) -> Value {
    serde_json::from_str(&block[key]).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

fn latin1(value: &Value) -> Vec<u8> {
    value
        .as_str()
        .unwrap()
        .chars()
        .map(|char| u8::try_from(u32::from(char)).unwrap())
        .collect()
}

fn fill(encoder: &mut EnvironEncoder<'_>, pairs: &Value) {
    for pair in pairs.as_array().unwrap() {
        let key = latin1(&pair[0]);
        encoder.push_variable(&key, &latin1(&pair[1]));
    }
}

const DIALECTS: [(&str, Dialect); 2] = [("python", Dialect::Python), ("ruby", Dialect::Ruby)];

#[test]
fn environments() {
    for block in blocks("environ") {
        for (key, dialect) in DIALECTS {
            let mut out = Vec::new();
            let mut encoder = EnvironEncoder::new(&mut out, dialect);
            fill(&mut encoder, &json(&block, "pairs"));
            encoder.finish().unwrap();
            assert_eq!(hex(&out), block[key], "{} {key}", block["name"]);
        }
    }
}

#[test]
fn frames_to_a_worker() {
    for block in blocks("to_worker") {
        if block["name"].starts_with("collect") {
            let mut out = Vec::new();
            encode_collect_garbage(&mut out);
            assert_eq!(hex(&out), block["both"], "{}", block["name"]);
            continue;
        }
        if block.contains_key("seq") {
            let mut out = Vec::new();
            encode_cancel(&mut out, block["seq"].parse().unwrap());
            assert_eq!(hex(&out), block["both"], "{}", block["name"]);
            continue;
        }
        if block.contains_key("input") {
            let bytes = latin1(&json(&block, "input"));
            let mut out = Vec::new();
            match block["flags"].as_str() {
                "2" => encode_input_aborted(&mut out),
                flags => encode_input(&mut out, &bytes, flags == "1"),
            }
            assert_eq!(hex(&out), block["both"], "{}", block["name"]);
            continue;
        }
        let bytes = latin1(&json(&block, "body"));
        let body = match block["file"].as_str() {
            "true" => RequestBodySource::File,
            _ if block.contains_key("stream") => RequestBodySource::Streamed(&bytes),
            _ => RequestBodySource::Inline(&bytes),
        };
        for (key, dialect) in DIALECTS {
            let mut out = Vec::new();
            encode_request(&mut out, dialect, body, |e| fill(e, &json(&block, "pairs"))).unwrap();
            assert_eq!(hex(&out), block[key], "{} {key}", block["name"]);
        }
    }
}

/// What a worker writes for `send`, by the encoders of this crate.
fn written(send: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    let strings: Vec<Vec<u8>> = send[1]
        .as_array()
        .map(|all| all.iter().map(latin1).collect())
        .unwrap_or_default();
    let strings: Vec<&[u8]> = strings.iter().map(Vec::as_slice).collect();
    match send[0].as_str().unwrap() {
        "whole" => encode_head(&mut out, frame::FLAG_END, 0, &strings, &latin1(&send[2])),
        "file" => {
            encode_head(&mut out, frame::FLAG_STREAM, 0, &strings, b"");
            let offset = send[2].as_u64().unwrap();
            encode_file(&mut out, frame::FLAG_END, offset, send[3].as_u64());
        }
        "failed" => {
            let flags = u8::from(send[2].as_bool().unwrap());
            encode_text(
                &mut out,
                FrameKind::Failed,
                flags,
                send[1].as_str().unwrap(),
            );
        }
        "fd_please" => encode_fd_request(&mut out),
        "hijack" => {
            encode_hijack(&mut out);
            encode_body(&mut out, frame::FLAG_END, b"");
        }
        kind => {
            encode_head(&mut out, frame::FLAG_STREAM, 0, &strings, &latin1(&send[2]));
            for chunk in send[3].as_array().unwrap() {
                encode_body(&mut out, 0, &latin1(chunk));
            }
            if kind == "abort" {
                encode_text(&mut out, FrameKind::Abort, 0, send[4].as_str().unwrap());
            } else {
                encode_body(&mut out, frame::FLAG_END, b"");
            }
        }
    }
    out
}

/// The frame that a worker sends beside a response, and its event.
fn frame_beside_response(block: &Block) -> (Vec<u8>, SlotEvent<'static>) {
    let mut out = Vec::new();
    let event = match block["say"].as_str() {
        "io_bound" => {
            encode_text(&mut out, FrameKind::IoBound, 0, "");
            SlotEvent::IoBound
        }
        "pull" => {
            encode_pull(&mut out);
            SlotEvent::Pull
        }
        "extend" => {
            let seconds: u32 = block["seconds"].parse().unwrap();
            let header = FrameHeader {
                kind: FrameKind::ExtendDeadline,
                flags: 0,
                string_count: 0,
                payload_len: 4,
            };
            out.extend_from_slice(&header.encode());
            out.extend_from_slice(&seconds.to_le_bytes());
            SlotEvent::ExtendDeadline { seconds }
        }
        _ => {
            encode_text(&mut out, FrameKind::GarbageCollected, 0, "");
            SlotEvent::GarbageCollected
        }
    };
    (out, event)
}

#[test]
fn frames_beside_responses() {
    for block in blocks("words_of_worker") {
        let name = &block["name"];
        let (written, event) = frame_beside_response(&block);
        assert_eq!(hex(&written), block["hex"], "{name}");
        let mut decoder = SlotDecoder::new();
        match event {
            SlotEvent::GarbageCollected => decoder.record_gc_sent(),
            _ => decoder.record_sent_request(false),
        }
        for cut in 0..written.len() {
            assert_eq!(
                decoder.decode(&written[..cut]),
                Ok(None),
                "{name} cut at {cut}"
            );
        }
        let decoded = decoder.decode(&written).unwrap().unwrap();
        assert_eq!(
            (decoded.event, decoded.consumed),
            (event, written.len()),
            "{name}"
        );
    }
}

#[test]
fn responses() {
    for block in blocks("from_worker") {
        let name = &block["name"];
        let send = json(&block, "send");
        assert_eq!(hex(&written(&send)), block["hex"], "{name}");
        let bytes = unhex(&block["hex"]);
        let mut decoder = SlotDecoder::new();
        decoder.record_sent_request(send[0] == "fd_please");
        let mut at = 0;
        let mut is_last = false;
        while at < bytes.len() {
            let decoded = decoder.decode(&bytes[at..]).unwrap().unwrap();
            at += decoded.consumed;
            is_last = decoded.event.is_last();
            if let SlotEvent::Head { head, .. } = decoded.event {
                assert!(head.is_ok(), "{name}");
            }
        }
        assert_eq!(is_last, send[0] != "fd_please", "{name}");
    }
}

#[test]
fn responses_that_are_refused() {
    for block in blocks("from_worker_refused") {
        let bytes = unhex(&block["hex"]);
        let mut decoder = SlotDecoder::new();
        decoder.record_sent_request(false);
        let mut at = 0;
        let error: WireError = loop {
            match decoder.decode(&bytes[at..]) {
                Ok(decoded) => at += decoded.unwrap().consumed,
                Err(error) => break error,
            }
        };
        assert_eq!(error.to_string(), block["error"], "{}", block["name"]);
    }
}

#[test]
fn heads_that_are_refused() {
    for block in blocks("heads_refused") {
        let bytes = unhex(&block["hex"]);
        let mut decoder = SlotDecoder::new();
        decoder.record_sent_request(false);
        let decoded = decoder.decode(&bytes).unwrap().unwrap();
        let SlotEvent::Head {
            head: Err(error),
            end: true,
            ..
        } = decoded.event
        else {
            panic!("{}: {decoded:?}", block["name"]);
        };
        assert_eq!(error.to_string(), block["error"], "{}", block["name"]);
        assert_eq!(decoder.outstanding_requests(), 0, "{}", block["name"]);
    }
}

#[test]
fn control() {
    let hello = encode_hello(penstock_wire::PROTOCOL_VERSION);
    for block in blocks("control") {
        let bytes = unhex(&block["hex"]);
        let mut decoder = ControlDecoder::for_template();
        if block["kind"] == "32" {
            assert_eq!(bytes, hello);
            assert_eq!(
                decoder.decode(&bytes),
                Ok(Some((ControlEvent::Hello, bytes.len())))
            );
            continue;
        }
        decoder.decode(&hello).unwrap();
        let text = json(&block, "text");
        let text = text.as_str().unwrap();
        let event = match block["kind"].as_str() {
            "33" => ControlEvent::Ready { json: text },
            "35" => {
                let mut ready = Vec::new();
                encode_text(&mut ready, FrameKind::Ready, 0, "{}");
                decoder.decode(&ready).unwrap();
                let (worker, reason) = fork_failed(text);
                ControlEvent::ForkFailed { worker, reason }
            }
            _ => ControlEvent::BootFailed { traceback: text },
        };
        assert_eq!(
            decoder.decode(&bytes),
            Ok(Some((event, bytes.len()))),
            "{}",
            block["name"]
        );
    }
}

/// Number and reason of a failed fork.
fn fork_failed(text: &str) -> (u64, &str) {
    let (worker, reason) = text.split_at(8);
    (
        u64::from_le_bytes(worker.as_bytes().try_into().unwrap()),
        reason,
    )
}

#[test]
fn control_to_process() {
    for block in blocks("control_to_process") {
        let kind = |letter: char| match letter {
            's' => SocketKind::Slot,
            'i' => SocketKind::Spare,
            'c' => SocketKind::Channel,
            _ => SocketKind::Files,
        };
        let bytes = match block["kind"].as_str() {
            "48" => encode_fork(block["worker"].parse().unwrap()).to_vec(),
            "49" => {
                let kinds: Vec<_> = block["kinds"].chars().map(kind).collect();
                encode_slots(&kinds, block["last"] == "true")
            }
            "50" => encode_promote().to_vec(),
            _ => encode_dismiss().to_vec(),
        };
        assert_eq!(hex(&bytes), block["hex"], "{}", block["name"]);
    }
}
