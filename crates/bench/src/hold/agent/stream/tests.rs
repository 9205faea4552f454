//! Streams fed with bytes in all pieces: their counts, their ends, and the memory they use.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;

use super::*;
use crate::hold::agent::tally::StreamCounters;
use crate::report::StreamCounts;

const AT: ReceiptTime = ReceiptTime {
    tenths: 25,
    us: 1_000_050,
};

/// A stream that has sent its request, at the start.
fn requested_stream() -> HeldStream {
    // Any descriptor: nothing here reads it.
    let socket = OwnedFd::from(UnixStream::pair().unwrap().0);
    let mut stream = HeldStream::new_connecting(socket, 5);
    assert!(stream.is_connecting() && !stream.is_open());
    stream.mark_request_sent();
    stream
}

/// A numbered message sent 50 us before [`AT`].
fn message(number: u32) -> String {
    let sent = AT.us - 50;
    NumberedMessage {
        number,
        sent_at: sent,
    }
    .encode(9)
}

/// The outcome of the pieces: the loss, if it was lost, and the counts.
fn pieces(pieces: &[&[u8]]) -> (Option<LossCause>, StreamCounts) {
    let (mut stream, mut tally) = (requested_stream(), StreamCounters::new(9).unwrap());
    for piece in pieces {
        if let Err(loss) = stream.receive(piece, AT, &mut tally) {
            return (Some(loss), tally.counts);
        }
    }
    (None, tally.counts)
}

/// The outcome of the bytes in one piece, which must equal all splits in two and single bytes. The
/// number of receipts depends on the pieces.
fn outcome(text: &str) -> (Option<LossCause>, StreamCounts) {
    let bytes = text.as_bytes();
    let alike = |(loss, mut counts): (Option<LossCause>, StreamCounts)| {
        (counts.receipts, counts.bytes) = (0, 0);
        (loss, counts)
    };
    let whole = alike(pieces(&[bytes]));
    for at in 1..bytes.len() {
        let two = alike(pieces(&[&bytes[..at], &bytes[at..]]));
        assert_eq!(two, whole, "{text:?} cut at {at}");
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(alike(pieces(&single)), whole, "{text:?} byte by byte");
    whole
}

fn chunk(text: &str) -> String {
    format!("{:x}\r\n{text}\r\n", text.len())
}

const CHUNKED: &str = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
const UNTIL_CLOSE: &str = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n";

/// Heap bytes of a stream alone.
fn heap_bytes(stream: &HeldStream) -> usize {
    let rest = stream.partial.as_ref();
    rest.map_or(0, |rest| size_of::<PartialInput>() + rest.bytes.capacity())
}

#[test]
fn hears_events_comments_and_messages_in_every_framing() {
    let content = format!(
        ": beat\n\ndata: a\ndata: b\n\nid: 1\n\ndata: {}\r\n\r\ndata:{{\"m\":\"{}\"}}\n\n",
        message(1),
        message(2)
    );
    let length = format!(
        "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n",
        content.len() + 1
    );
    let halves = content.split_at(content.len() / 2);
    for text in [
        format!("{UNTIL_CLOSE}{content}"),
        format!("{length}{content}"),
        format!("{CHUNKED}{}", chunk(&content)),
        format!("{CHUNKED}{}{}", chunk(halves.0), chunk(halves.1)),
        format!(
            "HTTP/1.1 103 Early Hints\r\nA: b\r\n\r\n{CHUNKED}{}",
            chunk(&content)
        ),
    ] {
        let (loss, counts) = outcome(&text);
        assert_eq!(loss, None, "{text}");
        let expected = StreamCounts {
            opened: 1,
            open: 1,
            max_open: 1,
            events: 3,
            comments: 1,
            received: 2,
            ..StreamCounts::default()
        };
        assert_eq!(counts, expected, "{text}");
    }
}

#[test]
fn is_lost_by_what_the_server_says() {
    for (text, expected) in [
        (
            format!("{CHUNKED}3\r\n:\n\n\r\n0\r\n\r\n"),
            LossCause::Ended,
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok".to_owned(),
            LossCause::Ended,
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n".to_owned(),
            LossCause::Ended,
        ),
        (
            "HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\nno".to_owned(),
            LossCause::Status(503),
        ),
        (
            "HTTP/1.1 204 No Content\r\n\r\n".to_owned(),
            LossCause::Status(204),
        ),
        ("SSH-2.0-x\r\n\r\n".to_owned(), LossCause::Malformed),
        (format!("{CHUNKED}zz\r\n"), LossCause::Malformed),
    ] {
        assert_eq!(outcome(&text).0, Some(expected), "{text}");
    }
    let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(20_000));
    assert_eq!(pieces(&[long.as_bytes()]).0, Some(LossCause::Malformed));
}

#[test]
fn the_end_of_the_connection_says_how_it_was_lost() {
    let mut tally = StreamCounters::new(9).unwrap();
    for (text, expected) in [
        ("", LossCause::Closed),
        ("HTTP/1.1 200 OK\r\n", LossCause::Closed),
        (CHUNKED, LossCause::Closed),
        (UNTIL_CLOSE, LossCause::Ended),
    ] {
        let mut stream = requested_stream();
        stream.receive(text.as_bytes(), AT, &mut tally).unwrap();
        assert_eq!(stream.end_cause(), expected, "{text}");
    }
}

#[test]
fn counts_what_is_missed_and_what_comes_again() {
    let feed = |stream: &mut HeldStream, tally: &mut StreamCounters, numbers: &[u32]| {
        for number in numbers {
            let text = format!("data: {}\n\n", message(*number));
            stream.receive(text.as_bytes(), AT, tally).unwrap();
        }
    };
    for (what, expects, numbers, last, missed, repeated) in [
        ("all", true, &[1, 2, 3][..], 3, 0, 0),
        ("a gap", true, &[1, 4], 4, 2, 0),
        ("the first", true, &[2, 3], 3, 1, 0),
        ("the last", true, &[1, 2], 4, 2, 0),
        ("none at all", true, &[], 4, 4, 0),
        ("came later", false, &[3, 4], 4, 0, 0),
        ("came later, a gap", false, &[3, 5], 5, 1, 0),
        ("came later than all", false, &[], 4, 0, 0),
        ("twice", true, &[1, 2, 2, 3], 3, 0, 1),
        ("another order", true, &[1, 3, 2], 3, 1, 1),
    ] {
        let (mut stream, mut tally) = (requested_stream(), StreamCounters::new(9).unwrap());
        stream
            .receive(UNTIL_CLOSE.as_bytes(), AT, &mut tally)
            .unwrap();
        if expects {
            stream.expect_all_messages();
        }
        feed(&mut stream, &mut tally, numbers);
        let counts = tally.counts;
        let all = (
            counts.missed + stream.missing_messages(last),
            counts.repeated,
        );
        assert_eq!(all, (missed, repeated), "{what}");
        assert_eq!(counts.received, numbers.len() as u64, "{what}");
    }
}

#[test]
fn a_message_takes_from_its_moment_to_its_receipt() {
    let (mut stream, mut tally) = (requested_stream(), StreamCounters::new(9).unwrap());
    let text = format!("{UNTIL_CLOSE}data: {}\n\n", message(1));
    stream.receive(text.as_bytes(), AT, &mut tally).unwrap();
    assert!(stream.is_open());
    let tick = tally.drain_into_tick();
    assert_eq!(tick.latency, [(50, 1)]);
    assert_eq!(tick.opening.len(), 1, "2.1 ms, in the histogram's steps");
    assert!((2099..=2101).contains(&tick.opening[0].0));
}

#[test]
fn keeps_nothing_between_whole_events() {
    let (mut stream, mut tally) = (requested_stream(), StreamCounters::new(9).unwrap());
    stream
        .receive(&CHUNKED.as_bytes()[..9], AT, &mut tally)
        .unwrap();
    assert!(heap_bytes(&stream) > 0, "a head under way");
    stream
        .receive(&CHUNKED.as_bytes()[9..], AT, &mut tally)
        .unwrap();
    assert_eq!(heap_bytes(&stream), 0);
    let event = chunk(&format!("data: {}\n\n", message(1)));
    let (first, second) = event.as_bytes().split_at(20);
    stream.receive(first, AT, &mut tally).unwrap();
    assert!(heap_bytes(&stream) > 0, "a line under way");
    stream.receive(second, AT, &mut tally).unwrap();
    assert_eq!((heap_bytes(&stream), tally.counts.received), (0, 1));
}

#[test]
fn a_line_without_end_takes_no_memory_without_end() {
    let (mut stream, mut tally) = (requested_stream(), StreamCounters::new(9).unwrap());
    stream
        .receive(UNTIL_CLOSE.as_bytes(), AT, &mut tally)
        .unwrap();
    stream.receive(b"data: ", AT, &mut tally).unwrap();
    for _ in 0..100 {
        stream.receive(&[b'x'; 5000], AT, &mut tally).unwrap();
        assert!(heap_bytes(&stream) <= 4 * MAX_LINE_BYTES);
    }
    let rest = format!("x\n\ndata: {}\n\n", message(1));
    stream.receive(rest.as_bytes(), AT, &mut tally).unwrap();
    assert_eq!((tally.counts.events, tally.counts.received), (2, 1));
    assert_eq!(heap_bytes(&stream), 0);
}
