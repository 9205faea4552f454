//! Replays `vectors/channel*.txt`, the examples of a reactor's channel that the Python and Ruby
//! tests replay too. The form is that of `vectors.rs`.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "helpers of tests"
)]

use std::collections::HashMap;

use penstock_wire::channel::{self, ChannelDecoder, ChannelEvent, reactor_encoder};
use penstock_wire::{Dialect, EnvironEncoder, RequestBodySource, ScopeEncoder, frame};
use serde_json::Value;

type Block = HashMap<String, String>;

fn blocks(file: &str) -> Vec<Block> {
    let path = format!("{}/vectors/{file}.txt", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let blocks = text.split("\n\n").map(|block| {
        let lines = block.lines().filter(|line| !line.starts_with('#'));
        lines
            .filter_map(|line| line.split_once(": "))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect::<Block>()
    });
    let blocks: Vec<Block> = blocks.filter(|block| !block.is_empty()).collect();
    assert!(blocks.len() > 2);
    blocks
}

fn json(block: &Block, key: &str) -> Value {
    serde_json::from_str(&block[key]).unwrap()
}

fn number(value: &Value) -> u32 {
    u32::try_from(value.as_u64().unwrap()).unwrap()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap())
        .collect()
}

fn latin1(value: &Value) -> Vec<u8> {
    let chars = value.as_str().unwrap().chars();
    chars
        .map(|char| u8::try_from(u32::from(char)).unwrap())
        .collect()
}

fn opened(block: &Block, dialect: Dialect) -> Vec<u8> {
    let bytes = latin1(&json(block, "body"));
    let body = match block["file"].as_str() {
        "true" => RequestBodySource::File,
        _ if block.contains_key("stream") => RequestBodySource::Streamed(&bytes),
        _ => RequestBodySource::Inline(&bytes),
    };
    let is_websocket = block["websocket"] == "true";
    let mut out = Vec::new();
    channel::encode_open(&mut out, is_websocket, body, |out| {
        let mut encoder = EnvironEncoder::new(out, dialect);
        for pair in json(block, "pairs").as_array().unwrap() {
            encoder.push_variable(&latin1(&pair[0]), &latin1(&pair[1]));
        }
        encoder.finish()
    })
    .unwrap();
    let id = number(&json(block, "id"));
    out[channel::OPEN_STREAM_ID_OFFSET..channel::OPEN_STREAM_ID_OFFSET + 4]
        .copy_from_slice(&id.to_le_bytes());
    out
}

#[test]
fn frames_to_a_reactor() {
    for block in blocks("channel_to_worker") {
        let name = &block["name"];
        let id = number(&json(&block, "id"));
        let written = match block["kind"].as_str() {
            "open" => {
                assert_eq!(hex(&opened(&block, Dialect::Python)), block["python"]);
                assert_eq!(hex(&opened(&block, Dialect::Ruby)), block["ruby"]);
                continue;
            }
            "gone" => channel::encode_stream_cancel(id).to_vec(),
            "window" => channel::encode_window(id, number(&json(&block, "bytes"))).to_vec(),
            "input" => {
                let data = latin1(&json(&block, "data"));
                let mut out = Vec::new();
                channel::encode_input(&mut out, id, &data, block["last"] == "true");
                out
            }
            "message" => {
                let data = latin1(&json(&block, "data"));
                let is_text = block["text"] == "true";
                let head = channel::encode_message_head(id, is_text, data.len()).unwrap();
                [&head[..], &data].concat()
            }
            _ => {
                let mut out = Vec::new();
                let reason = json(&block, "reason");
                let code = block["code"].parse().unwrap();
                channel::encode_close(&mut out, id, code, reason.as_str().unwrap());
                out
            }
        };
        assert_eq!(hex(&written), block["hex"], "{name}");
    }
}

/// What a worker writes for `send`, by the encoders of this crate.
fn written(send: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    let id = number(&send[1]);
    let strings: Vec<Vec<u8>> = send[2]
        .as_array()
        .map(|all| all.iter().map(latin1).collect())
        .unwrap_or_default();
    let strings: Vec<&[u8]> = strings.iter().map(Vec::as_slice).collect();
    match send[0].as_str().unwrap() {
        "answer" => reactor_encoder::encode_response(
            &mut out,
            frame::FLAG_END,
            id,
            0,
            &strings,
            &latin1(&send[3]),
        ),
        "accept" => reactor_encoder::encode_accept(&mut out, id, &strings),
        "reset" => {
            let flags = u8::from(send[3].as_bool().unwrap());
            reactor_encoder::encode_reset(&mut out, flags, id, send[2].as_str().unwrap());
        }
        "message" => {
            let flags = u8::from(send[2].as_bool().unwrap());
            reactor_encoder::encode_message(&mut out, flags, id, &latin1(&send[3]));
        }
        "close" => {
            let code = u16::try_from(number(&send[2])).unwrap();
            reactor_encoder::encode_close(&mut out, id, code, send[3].as_str().unwrap());
        }
        "window" => reactor_encoder::encode_window(&mut out, id, number(&send[2])),
        "pull" => reactor_encoder::encode_pull(&mut out, id),
        "hijack" => reactor_encoder::encode_hijack(&mut out, id),
        kind => {
            let body = latin1(&send[3]);
            reactor_encoder::encode_response(&mut out, frame::FLAG_STREAM, id, 0, &strings, &body);
            if kind == "cut" {
                reactor_encoder::encode_reset(&mut out, 0, id, send[4].as_str().unwrap());
            } else {
                for chunk in send[4].as_array().unwrap() {
                    reactor_encoder::encode_data(&mut out, 0, id, &latin1(chunk));
                }
                reactor_encoder::encode_data(&mut out, frame::FLAG_END, id, b"");
            }
        }
    }
    out
}

#[test]
fn frames_from_a_reactor() {
    for block in blocks("channel_from_worker") {
        let name = &block["name"];
        let send = json(&block, "send");
        assert_eq!(hex(&written(&send)), block["hex"], "{name}");
        let bytes = unhex(&block["hex"]);
        let mut decoder = ChannelDecoder::new();
        let mut at = 0;
        while at < bytes.len() {
            let decoded = decoder.decode(&bytes[at..]).unwrap().unwrap();
            at += decoded.consumed;
            assert_eq!(decoded.event.stream_id(), number(&send[1]), "{name}");
            match decoded.event {
                ChannelEvent::Response { head, .. } => assert!(head.is_ok(), "{name}"),
                ChannelEvent::Accept { head, .. } => assert!(head.is_ok(), "{name}"),
                _ => {}
            }
        }
    }
}

#[test]
fn frames_that_are_refused() {
    for block in blocks("channel_from_worker_refused") {
        let bytes = unhex(&block["hex"]);
        let refused = ChannelDecoder::new().decode(&bytes);
        let error = refused.expect_err(&block["name"]);
        assert_eq!(error.to_string(), block["error"], "{}", block["name"]);
    }
}

#[test]
fn scopes() {
    for block in blocks("channel_scope") {
        let mut out = Vec::new();
        let mut encoder = ScopeEncoder::new(&mut out);
        let scope = json(&block, "scope");
        // `hex` has the entries in this order.
        let order = [
            "type",
            "http_version",
            "method",
            "scheme",
            "path",
            "raw_path",
            "query_string",
            "root_path",
            "subprotocols",
            "client",
            "server",
            "headers",
        ];
        for key in order {
            let value = &scope[key];
            match (key, value) {
                (_, Value::Null) if scope.get(key).is_none() => {}
                (_, Value::Null) => encoder.push_none(key),
                ("raw_path" | "query_string", _) => encoder.push_bytes(key, &latin1(value)),
                ("headers", _) => encoder.push_headers(|headers| {
                    for pair in value.as_array().unwrap() {
                        headers.add(&latin1(&pair[0]).to_ascii_uppercase(), &latin1(&pair[1]));
                    }
                }),
                ("subprotocols", _) => {
                    let names: Vec<_> = value.as_array().unwrap().iter().map(latin1).collect();
                    encoder.push_str_list(key, names.iter().map(Vec::as_slice));
                }
                ("client" | "server", _) => {
                    let port = value[1].as_u64().map(|port| u16::try_from(port).unwrap());
                    encoder.push_address(key, &latin1(&value[0]), port);
                }
                _ => encoder.push_str(key, value.as_str().unwrap()),
            }
        }
        encoder.finish();
        assert_eq!(hex(&out), block["hex"], "{}", block["name"]);
    }
}
