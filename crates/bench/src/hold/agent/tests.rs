//! How an agent answers unsupported orders over its lines.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;

use super::*;
use crate::tls::TlsSettings;

/// The agent's answers to these lines and the end of input.
fn says(lines: &str) -> Vec<String> {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let (reader, writer) = UnixStream::pair().unwrap();
    ours.write_all(lines.as_bytes()).unwrap();
    drop(ours);
    let agent = std::thread::spawn(move || serve_coordinator(theirs, writer));
    let words = BufReader::new(reader).lines().map(Result::unwrap).collect();
    // Only the messages matter.
    let _ = agent.join().unwrap();
    words
}

fn order(change: impl FnOnce(&mut AgentOrder)) -> String {
    let mut order = AgentOrder {
        protocol: PROTOCOL_VERSION,
        targets: vec![StreamTarget {
            address: "127.0.0.1:1".parse().unwrap(),
            server_name: None,
            request: String::new(),
        }],
        streams: 3,
        rate: 1.0,
        max_connecting: 1,
        tls: TlsSettings::default(),
        sources: Vec::new(),
        timeout_ms: 1000,
        silence_ms: None,
        churn: 0.0,
        unread_one_in: None,
        run: 1,
        tick_ms: 60_000,
    };
    change(&mut order);
    serde_json::to_string(&order).unwrap() + "\n"
}

#[test]
fn an_agent_ends_with_its_input() {
    assert_eq!(says(""), [""; 0]);
    assert_eq!(says("{\"protocol\":1"), [""; 0], "no whole order");
    assert_eq!(says(&order(|_| {})), ["{\"ready\":{\"protocol\":3}}"]);
}

#[test]
fn an_order_that_cannot_be_executed_is_refused_in_words() {
    for (line, why) in [
        ("{}\n".to_owned(), "invalid order"),
        (order(|order| order.protocol = 9), "version 9"),
        (
            order(|order| order.targets.clear()),
            "without a stream target",
        ),
        (
            order(|order| order.rate = -1.0),
            "without a stream target or a rate",
        ),
        (
            order(|order| order.targets[0].server_name = Some("a b".to_owned())),
            "no host name",
        ),
        (
            order(|order| {
                order.targets[0].server_name = Some("localhost".to_owned());
                order.tls.groups = vec!["x".to_owned()];
            }),
            "no key exchange is named",
        ),
    ] {
        let words = says(&line);
        assert!(words.len() == 1 && words[0].contains("failed"), "{words:?}");
        assert!(words[0].contains(why), "{words:?}");
    }
}

#[test]
fn the_last_word_says_what_was_missed() {
    let asks = "\"publishing\"\n{\"finish\":{\"last\":7}}\n";
    let words = says(&(order(|_| {}) + asks));
    let done: AgentMessage = serde_json::from_str(&words[1]).unwrap();
    let AgentMessage::Done(tick) = done else {
        panic!("{words:?}");
    };
    assert_eq!((tick.pending, tick.counts.missed), (3, 0), "none was open");
    assert!(tick.expects_messages && tick.memory > 0);
}
