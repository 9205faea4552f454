//! What a client may send behind the handshake, and the end of a session on a full socket.

mod traffic;

use std::future::poll_fn;
use std::io::{ErrorKind, IoSlice};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use penstock_runtime::{Stream, clock, loops, relay};
use penstock_sys::net;

use super::*;
use crate::fuzzing::SessionEnds;
use crate::records::RecordSession;

const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

/// A key update that asks for one in return (RFC 8446 §4.6.3).
const KEY_UPDATE: [u8; 5] = [24, 0, 0, 1, 1];
const CLOSE_NOTIFY: [u8; 2] = [1, 0];

fn with_session<F: Future<Output = ()>>(is_tls13: bool, test: impl FnOnce(SessionEnds) -> F) {
    let run = async {
        let test = test(SessionEnds::new(is_tls13).await.unwrap());
        let done = clock::timeout(Duration::from_secs(20), test).await;
        done.expect("the test ends in time");
    };
    loops::block_on(run).unwrap();
}

/// Records of these types and contents, from the client.
fn records(ends: &mut SessionEnds, messages: &[(u8, &[u8])]) -> Vec<u8> {
    let seal = |(content, message): &(u8, &[u8])| ends.client.seal_any(*content, message).unwrap();
    messages.iter().flat_map(seal).collect()
}

fn send(ends: &mut SessionEnds, messages: &[(u8, &[u8])]) {
    let records = records(ends, messages);
    assert_eq!(ends.send(&records), records.len());
}

/// The kind of the error that a read ended with.
fn error_kind(end: Option<io::Result<()>>) -> ErrorKind {
    end.expect("an end").unwrap_err().kind()
}

#[test]
fn records_behind_the_end_are_not_read() {
    for is_tls13 in [true, false] {
        with_session(is_tls13, |mut ends| async move {
            let last = [(DATA, &b"one"[..]), (ALERT, &CLOSE_NOTIFY), (DATA, b"two")];
            send(&mut ends, &last);
            let (bytes, end) = ends.read_available(100).await;
            assert_eq!(bytes, b"one");
            end.expect("an end").unwrap();
            // Nor do bytes that are no records do harm, and the client still reads.
            ends.send(&[0xff; 100]);
            assert!(ends.read_available(100).await.1.unwrap().is_ok());
            ends.stream.write_all(b"answer").await.unwrap();
            let mut answer = ends.receive();
            let opened = ends.client.open(&mut answer, &mut Vec::new()).unwrap();
            assert_eq!(opened.data_bytes, 6);
        });
    }
}

#[test]
fn the_end_of_the_socket_is_an_error_behind_what_came_before() {
    for (behind, is_announced) in [(&[][..], false), (&[(ALERT, &CLOSE_NOTIFY[..])], true)] {
        with_session(true, |mut ends| async move {
            send(&mut ends, &[(DATA, b"part")]);
            send(&mut ends, behind);
            net::shutdown(ends.socket.as_fd(), net::Shutdown::Write).unwrap();
            let (bytes, end) = ends.read_available(3).await;
            assert_eq!(bytes, b"part");
            match is_announced {
                true => end.expect("an end").unwrap(),
                false => assert_eq!(error_kind(end), ErrorKind::UnexpectedEof),
            }
        });
    }
}

#[test]
fn half_a_record_is_no_end() {
    with_session(true, |mut ends| async move {
        let record = records(&mut ends, &[(DATA, b"never whole")]);
        ends.send(&record[..record.len() - 1]);
        assert!(ends.read_available(100).await.1.is_none());
        net::shutdown(ends.socket.as_fd(), net::Shutdown::Write).unwrap();
        let (bytes, end) = ends.read_available(100).await;
        assert!(bytes.is_empty());
        assert_eq!(error_kind(end), ErrorKind::UnexpectedEof);
    });
}

#[test]
fn violations_end_a_session_with_an_alert() {
    let violations: [(&str, u8, &[u8]); 5] = [
        ("an unknown type", 99, b"x"),
        ("a hello", HANDSHAKE, &[1, 0, 0, 1, 0]),
        ("a key update that asks for 7", HANDSHAKE, &[24, 0, 0, 1, 7]),
        ("an alert of 3 bytes", ALERT, &[1, 0, 0]),
        ("an alert of level 9", ALERT, &[9, 0]),
    ];
    for (what, content, message) in violations {
        with_session(true, |mut ends| async move {
            send(&mut ends, &[(DATA, b"before"), (content, message)]);
            let (bytes, end) = ends.read_available(100).await;
            assert_eq!(bytes, b"before", "{what}");
            assert_eq!(error_kind(end), ErrorKind::InvalidData, "{what}");
            let mut alert = ends.receive();
            let told = ends.client.open(&mut alert, &mut Vec::new());
            assert!(told.is_err(), "{what}: {told:?}");
            let written = ends.stream.try_write(&[IoSlice::new(b"x")]);
            assert_eq!(written.unwrap_err().kind(), ErrorKind::InvalidData);
        });
    }
}

#[test]
fn a_changed_byte_ends_a_session() {
    for is_tls13 in [true, false] {
        with_session(is_tls13, |mut ends| async move {
            let mut record = records(&mut ends, &[(DATA, b"message")]);
            *record.last_mut().unwrap() ^= 1;
            ends.send(&record);
            let (bytes, end) = ends.read_available(100).await;
            assert!(bytes.is_empty());
            assert_eq!(error_kind(end), ErrorKind::InvalidData);
        });
    }
}

#[test]
fn a_few_empty_records_are_read_and_many_are_refused() {
    with_session(true, |mut ends| async move {
        send(&mut ends, &[(DATA, &b""[..]); 30]);
        send(&mut ends, &[(DATA, b"x")]);
        assert_eq!(ends.read_available(100).await.0, b"x");
        send(&mut ends, &[(DATA, &b""[..]); 40]);
        assert_eq!(
            error_kind(ends.read_available(100).await.1),
            ErrorKind::InvalidData
        );
    });
}

#[test]
fn key_updates_are_answered_once_and_many_are_refused() {
    with_session(true, |mut ends| async move {
        for _ in 0..10 {
            send(&mut ends, &[(HANDSHAKE, &KEY_UPDATE[..]); 20]);
            send(&mut ends, &[(DATA, b"x")]);
            assert_eq!(ends.read_available(100).await.0, b"x");
            ends.stream.write_all(b"y").await.unwrap();
            let mut answer = ends.receive();
            assert!(answer.len() < 100, "one update and one byte: {answer:?}");
            let opened = ends.client.open(&mut answer, &mut Vec::new()).unwrap();
            assert_eq!(opened.data_bytes, 1);
        }
        send(&mut ends, &[(HANDSHAKE, &KEY_UPDATE[..]); 40]);
        assert_eq!(
            error_kind(ends.read_available(100).await.1),
            ErrorKind::InvalidData
        );
    });
}

/// What renegotiation begins with (RFC 5246 §7.4.1.2). Once there is a warning, then an end.
#[test]
fn renegotiation_is_refused() {
    with_session(false, |mut ends| async move {
        let hello = [
            &[1, 0, 0, 41, 3, 3][..],
            &[7; 32],
            &[0, 0, 2, 0xc0, 0x2b, 1, 0],
        ]
        .concat();
        send(&mut ends, &[(HANDSHAKE, &hello), (DATA, b"x")]);
        assert_eq!(ends.read_available(100).await.0, b"x");
        assert!(!ends.receive().is_empty(), "a warning");
        send(&mut ends, &[(HANDSHAKE, &hello)]);
        assert!(ends.read_available(100).await.1.unwrap().is_err());
    });
}

#[test]
fn memory_is_bounded_while_a_message_is_incomplete() {
    with_session(true, |mut ends| async move {
        // A message that promises 65,535 bytes, in records of a few bytes.
        send(&mut ends, &[(HANDSHAKE, &[24, 0, 0xff, 0xff])]);
        let mut end = None;
        for _ in 0..3000 {
            send(&mut ends, &[(HANDSHAKE, b"0123456789")]);
            end = ends.read_available(100).await.1;
            assert!(ends.buffer_bytes() <= 2 * MAX_INCOMPLETE_BYTES);
            if end.is_some() {
                break;
            }
        }
        assert_eq!(error_kind(end), ErrorKind::InvalidData);
        assert_eq!(ends.buffer_bytes(), 0);
    });
}

#[test]
fn a_small_buffer_gets_everything_and_wakes_again() {
    with_session(true, |mut ends| async move {
        let bytes: Vec<u8> = (0..=255).cycle().take(30_000).collect();
        send(
            &mut ends,
            &[(DATA, &bytes[..16_000]), (DATA, &bytes[16_000..])],
        );
        let (mut all, mut buffer) = (Vec::new(), [0; 700]);
        while all.len() < bytes.len() {
            let read = poll_fn(|cx| ends.stream.poll_read(cx, &mut buffer));
            let count = read.await.unwrap();
            all.extend_from_slice(&buffer[..count]);
            // Plaintext in memory counts as unread, whatever the socket has.
            assert_eq!(ends.stream.has_no_event(), all.len() == bytes.len());
        }
        assert!(all == bytes);
        assert_eq!(ends.buffer_bytes(), 0);
    });
}

/// A client that sends records of one byte gets no more of the loop's time than one that sends full
/// records.
#[test]
fn small_records_leave_the_loop_to_others() {
    with_session(true, |mut ends| async move {
        let many = vec![(DATA, &b"x"[..]); 4000];
        send(&mut ends, &many);
        loops::yield_now().await;
        let (mut count, mut buffer) = (0, [0; 8192]);
        let begun = loops::current_turn();
        while count < many.len() {
            let read = poll_fn(|cx| ends.stream.poll_read(cx, &mut buffer));
            count += read.await.unwrap();
        }
        // 2,850 fit into the first read, 178 into each one behind it.
        let turns = loops::current_turn() - begun;
        assert!((4..100).contains(&turns), "{turns}");
    });
}

/// Writes single bytes until the socket takes no more; returns how many it took.
fn fill(ends: &SessionEnds, max: usize) -> usize {
    for count in 0..max {
        match ends.stream.try_write(&[IoSlice::new(b"x")]) {
            Ok(written) => assert_eq!(written, 1),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                return count;
            }
        }
    }
    max
}

/// The client of a session whose stream has another owner.
struct ClientEnd {
    socket: OwnedFd,
    client: RecordSession,
}

impl ClientEnd {
    /// Reads to the end of the socket: the bytes, and whether the server has announced its end.
    async fn receive_all(&mut self) -> (usize, bool) {
        let (mut count, mut is_ended, mut buffer) = (0, false, vec![0; 16 << 10]);
        loop {
            match net::receive(self.socket.as_fd(), &mut buffer) {
                Ok(0) => return (count, is_ended),
                Ok(received) => {
                    let records = &mut buffer[..received];
                    let opened = self.client.open(records, &mut Vec::new()).unwrap();
                    count += opened.data_bytes;
                    is_ended |= opened.is_ended;
                }
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            loops::yield_now().await;
        }
    }
}

/// The bytes that fill a socket so that not even the end fits behind them.
fn capacity() -> usize {
    let mut capacity = 0;
    with_session(true, |ends| {
        capacity = fill(&ends, 100_000);
        async move { drop(ends) }
    });
    assert!((10..100_000).contains(&capacity), "{capacity}");
    capacity
}

#[test]
fn the_end_is_announced_as_soon_as_a_full_socket_has_room() {
    let capacity = capacity();
    type Wait = fn(&Stream, &mut Context<'_>) -> Poll<()>;
    let ways: [Wait; 2] = [
        |stream, cx| stream.poll_shutdown_write(cx),
        |stream, cx| stream.poll_read(cx, &mut [0; 10]).map(|_| ()),
    ];
    for wait in ways {
        with_session(true, |ends| async move {
            assert_eq!(fill(&ends, capacity), capacity);
            ends.stream.shutdown_write();
            assert!(ends.stream.unsent_bytes() > 0);
            let SessionEnds {
                stream,
                client,
                socket,
            } = ends;
            let stream = Arc::new(stream);
            let waiting = Arc::clone(&stream);
            // A task that nothing else wakes.
            loops::spawn_here(async move {
                poll_fn(|cx| wait(&waiting, cx)).await;
            });
            loops::yield_now().await;
            let mut client_end = ClientEnd { socket, client };
            assert_eq!(client_end.receive_all().await, (capacity, true));
        });
    }
}

/// The server behind a relay ends while its client's socket is full.
#[test]
fn a_relay_ends_when_the_end_is_out() {
    let capacity = capacity();
    with_session(true, |ends| async move {
        assert_eq!(fill(&ends, capacity), capacity);
        let SessionEnds {
            stream,
            client,
            socket,
        } = ends;
        let (server, peer) = net::worker_socket_pair().unwrap();
        let server = Stream::new(server).unwrap();
        drop(peer);
        loops::spawn_here(async move {
            let idle = Duration::from_secs(20);
            relay(&stream, &server, Vec::new(), Vec::new(), idle).await;
        });
        // The relay has nothing else to do: its client sends nothing.
        loops::yield_now().await;
        let mut client_end = ClientEnd { socket, client };
        assert_eq!(client_end.receive_all().await, (capacity, true));
    });
}

#[test]
fn a_write_that_was_given_up_is_no_end() {
    with_session(true, |ends| async move {
        let large = vec![7; 10_000_000];
        while ends.stream.try_write(&[IoSlice::new(&large)]).is_ok() {}
        ends.stream.shutdown_write();
        let SessionEnds {
            stream,
            client,
            socket,
        } = ends;
        loops::spawn_here(async move {
            poll_fn(|cx| stream.poll_shutdown_write(cx)).await;
        });
        let mut client_end = ClientEnd { socket, client };
        let (count, is_announced) = client_end.receive_all().await;
        assert!(count > 0 && !is_announced, "{count}");
    });
}

#[test]
fn an_empty_write_says_nothing() {
    with_session(true, |ends| async move {
        let large = vec![7; 10_000_000];
        while ends.stream.try_write(&[IoSlice::new(&large)]).is_ok() {}
        ends.receive();
        assert_eq!(ends.stream.try_write(&[IoSlice::new(b"")]).unwrap(), 0);
    });
}

#[test]
fn nothing_follows_a_failed_write() {
    with_session(true, |ends| async move {
        let SessionEnds { stream, socket, .. } = ends;
        drop(socket);
        for _ in 0..2 {
            let written = stream.try_write(&[IoSlice::new(b"lost")]);
            assert_eq!(written.unwrap_err().kind(), ErrorKind::BrokenPipe);
        }
    });
}

fn has_expanded_keys(stream: &Stream) -> bool {
    let layer = stream.layer().expect("a layer").as_any();
    let layer: &TlsLayer<RecordSession> = layer.downcast_ref().expect("a client's");
    layer.state.lock().session.has_expanded_keys()
}

#[test]
fn an_idle_session_gives_up_its_expanded_keys() {
    for is_tls13 in [true, false] {
        with_session(is_tls13, |mut ends| async move {
            for _ in 0..2 {
                send(&mut ends, &[(DATA, b"request")]);
                assert_eq!(ends.read_available(100).await.0, b"request");
                ends.stream.write_all(b"response").await.unwrap();
                assert!(has_expanded_keys(&ends.stream));
                // Nothing but the session's own timer wakes this task.
                poll_fn(|cx| {
                    assert!(ends.stream.poll_read(cx, &mut [0; 10]).is_pending());
                    match has_expanded_keys(&ends.stream) {
                        true => Poll::Pending,
                        false => Poll::Ready(()),
                    }
                })
                .await;
                let mut response = ends.receive();
                let opened = ends.client.open(&mut response, &mut Vec::new());
                assert_eq!(opened.unwrap().data_bytes, 8);
            }
        });
    }
}

#[test]
fn records_are_counted_by_their_headers() {
    let record = |len: u8| [&[23, 3, 3, 0, len][..], &vec![0; usize::from(len)]].concat();
    assert_eq!(count_records(&[]), 0);
    assert_eq!(count_records(&[23, 3, 3, 0]), 0);
    assert_eq!(count_records(&record(9)), 1);
    assert_eq!(
        count_records(&[record(9), record(0), record(200)].concat()),
        3
    );
    assert_eq!(count_records(&[record(9), record(9)].concat()[..19]), 2);
}
