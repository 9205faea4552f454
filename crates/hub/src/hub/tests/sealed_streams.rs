//! Streams over a session of TLS, for which a simple one stands here: each record has its number, so
//! that a client sees one that is missing or comes twice.

use penstock_exchange::{AddressPrefix, ConnectionAdopter, RecordLayer};
use penstock_sys::fd_packets;

use std::io::IoSlice;

use super::*;
use crate::{HubTransfer, SlowPolicy};

/// Records are a length of two bytes, a number of four, and the content with each bit inverted. A
/// client sends content as `d`; `?` is answered by an empty record, and `e` is its end.
#[derive(Debug)]
struct NumberedRecords {
    next: u32,
    is_ended: bool,
}

/// The client's end of [`NumberedRecords`].
#[derive(Debug, Default)]
pub(super) struct RecordOpener {
    received: Vec<u8>,
    next: u32,
    empty_records: usize,
    is_ended: bool,
}

const END: [u8; 2] = [0xff; 2];

const SESSION: &[u8] = b"session ";

impl NumberedRecords {
    fn seal_one(&mut self, content: &[u8], out: &mut Vec<u8>) {
        out.extend(u16::try_from(content.len()).unwrap().to_be_bytes());
        out.extend(self.next.to_be_bytes());
        out.extend(content.iter().map(|byte| !byte));
        self.next += 1;
    }
}

impl RecordLayer for NumberedRecords {
    fn seal(&mut self, slices: &[IoSlice<'_>], out: &mut Vec<u8>) -> io::Result<()> {
        if self.is_ended {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let content: Vec<u8> = slices.iter().flat_map(|slice| slice.to_vec()).collect();
        self.seal_one(&content, out);
        Ok(())
    }

    fn open(&mut self, bytes: &mut [u8], out: &mut Vec<u8>) -> io::Result<Option<usize>> {
        let mut content = 0;
        for byte in bytes {
            match byte {
                b'd' => content += 1,
                b'?' => self.seal_one(b"", out),
                b'e' => return Ok(None),
                _ => return Err(ErrorKind::InvalidData.into()),
            }
        }
        Ok(Some(content))
    }

    fn seal_end(&mut self, out: &mut Vec<u8>) {
        if !std::mem::replace(&mut self.is_ended, true) {
            out.extend(END);
        }
    }

    fn to_bytes(&self) -> Vec<u8> {
        [SESSION, &self.next.to_be_bytes()].concat()
    }

    fn memory_bytes(&self) -> usize {
        256
    }
}

impl RecordOpener {
    pub(super) fn open(&mut self, bytes: &[u8], content: &mut Vec<u8>) {
        assert!(bytes.is_empty() || !self.is_ended, "bytes behind the end");
        self.received.extend_from_slice(bytes);
        while let Some(length) = self.received.first_chunk::<2>() {
            if *length == END {
                self.is_ended = true;
                assert_eq!(self.received.len(), END.len(), "bytes behind the end");
                return;
            }
            let length = 6 + usize::from(u16::from_be_bytes(*length));
            if self.received.len() < length {
                return;
            }
            let record: Vec<u8> = self.received.drain(..length).collect();
            assert_eq!(record[2..6], self.next.to_be_bytes());
            self.next += 1;
            self.empty_records += usize::from(length == 6);
            content.extend(record[6..].iter().map(|byte| !byte));
        }
    }
}

impl HubHarness {
    /// As [`HubHarness::hold`], over a session.
    fn hold_sealed(&self, stream: HeldStream) -> Client {
        let before = self.hub.snapshot().counters.opened;
        let body = self.hub.stream_body(stream).unwrap();
        let (ours, theirs) = net::worker_socket_pair().unwrap();
        let records = NumberedRecords {
            next: 0,
            is_ended: false,
        };
        let held = HeldConnection::sealed(ours, Box::new(records), Vec::new());
        self.hand_over_with(body, held, HeldFraming::Chunked, b"", 0);
        self.until("the stream is held", |hub| {
            hub.snapshot().counters.opened > before
        });
        Client {
            opener: Some(RecordOpener::default()),
            ..Client::new(theirs)
        }
    }
}

/// The front end of the next process.
#[derive(Debug)]
struct SessionAdopter {
    front: Arc<CountingConnectionCounter>,
    /// It knows no sessions.
    refuses: bool,
}

impl ConnectionAdopter for SessionAdopter {
    fn adopt_held_connection(&self, _: Option<AddressPrefix>) -> HeldConnectionGuard {
        self.front.0.fetch_add(1, Ordering::SeqCst);
        HeldConnectionGuard::new(self.front.clone())
    }

    fn restore_record_layer(&self, session: &[u8]) -> io::Result<Box<dyn RecordLayer>> {
        if self.refuses {
            return Err(ErrorKind::Unsupported.into());
        }
        let next = session.strip_prefix(SESSION).unwrap();
        Ok(Box::new(NumberedRecords {
            next: u32::from_be_bytes(next.try_into().unwrap()),
            is_ended: false,
        }))
    }
}

/// Moves all streams that can move.
fn transfer(old: &HubHarness, new: &HubHarness, refuses: bool) -> HubTransfer {
    let (ours, theirs) = fd_packets::packet_pair().unwrap();
    let front = new.front.clone();
    let adopter = Arc::new(SessionAdopter { front, refuses });
    let hub = new.hub.clone();
    new.handles()[0].spawn(async move {
        let receiver = hub.receive_transfer(theirs, adopter).unwrap();
        receiver.run().await.unwrap();
    });
    let hub = old.hub.clone();
    old.run(async move {
        let mut transfer = hub.transfer_to(ours).unwrap();
        transfer.hand_over_channels().await.unwrap();
        transfer.hand_over_streams();
        transfer.wait_until_streams_moved().await;
        transfer
    })
}

#[test]
fn messages_are_sealed_on_their_way() {
    let rig = HubHarness::new(settings());
    let mut sealed = rig.hold_sealed(stream(&["a"]));
    let mut plain = rig.hold(stream(&["a"]));
    let long = "x".repeat(40_000);
    for text in ["one", &long, "three"] {
        rig.hub.publish(message("a", text)).unwrap();
        assert_eq!(sealed.chunk(), text);
        assert_eq!(plain.chunk(), text);
    }
    assert_eq!(rig.hub.snapshot().backlog_bytes.used, 0);
}

#[test]
fn memory_of_sessions_is_in_the_account_of_streams() {
    let rig = HubHarness::new(settings());
    let before = rig.hub.snapshot().stream_bytes;
    let clients: Vec<Client> = (0..50).map(|_| rig.hold_sealed(stream(&["a"]))).collect();
    let grown = |hub: &Hub| hub.snapshot().stream_bytes - before;
    rig.until("it is counted", |hub| grown(hub) > 50 * (256 + 40));
    drop(clients);
    rig.until("it is free", |hub| grown(hub) < 50 * 200);
}

#[test]
fn a_slow_client_of_a_session_gets_everything_in_order() {
    let rig = HubHarness::new(Settings {
        max_backlog: 8 << 20,
        send_timeout: Duration::from_secs(10_000),
        ..settings()
    });
    let mut client = rig.hold_sealed(stream(&["a"]));
    let text = |number: usize| format!("{number:>2999}\n");
    for number in 0..500 {
        rig.hub.publish(message("a", &text(number))).unwrap();
    }
    rig.until("some waits", |hub| hub.snapshot().backlog_bytes.used > 0);
    for number in 0..500 {
        assert_eq!(client.chunk(), text(number));
    }
    rig.until("nothing waits", |hub| {
        hub.snapshot().backlog_bytes.used == 0
    });
    // It continues as a stream that keeps up.
    rig.hub.publish(message("a", "more")).unwrap();
    assert_eq!(client.chunk(), "more");
}

#[test]
fn a_slow_client_of_a_session_loses_whole_messages() {
    let rig = HubHarness::new(Settings {
        max_backlog: 64 << 10,
        slow_policy: SlowPolicy::DropOldest,
        send_timeout: Duration::from_secs(10_000),
        ..settings()
    });
    let mut client = rig.hold_sealed(HeldStream {
        gap_notice: Some(Bytes::from_static(b"(gap)\n")),
        ..stream(&["a"])
    });
    for number in 0..2_000 {
        rig.hub
            .publish(message("a", &format!("{number:>999}\n")))
            .unwrap();
    }
    rig.until("some are lost", |hub| hub.snapshot().counters.dropped > 0);
    let waiting = rig.hub.snapshot().backlog_bytes.used;
    // Its own bound, and one record.
    assert!(waiting <= (64 << 10) + (17 << 10) + 1_000, "{waiting}");
    let (mut last, mut gaps) = (0, 0);
    while last < 1_999 {
        match client.chunk().as_str() {
            "(gap)\n" => gaps += 1,
            text => {
                let number = text.trim().parse::<u32>().unwrap();
                assert!(number > last || number == 0);
                last = number;
            }
        }
    }
    assert!(gaps > 0);
    rig.until("nothing waits", |hub| {
        hub.snapshot().backlog_bytes.used == 0
    });
}

#[test]
fn a_session_whose_client_stalls_is_ended() {
    let rig = HubHarness::new(Settings {
        max_backlog: 8 << 20,
        send_timeout: Duration::from_secs(10),
        ..settings()
    });
    let _stuck = rig.hold_sealed(stream(&["a"]));
    // A last message that is sealed whole waits in the session alone.
    rig.hub
        .publish(message("a", &"x".repeat(600 << 10)))
        .unwrap();
    rig.until("it is ended", |hub| hub.snapshot().connections.used == 0);
    assert_eq!(rig.hub.snapshot().backlog_bytes.used, 0);
}

#[test]
fn answers_of_a_session_go_out_between_messages() {
    let rig = HubHarness::new(settings());
    let mut client = rig.hold_sealed(stream(&["a"]));
    client.send(b"dd??d?");
    rig.hub.publish(message("a", "one")).unwrap();
    assert_eq!(client.chunk(), "one");
    rig.hub.publish(message("a", "two")).unwrap();
    assert_eq!(client.chunk(), "two");
    while client.opener.as_ref().unwrap().empty_records < 3 {
        assert!(client.read_some());
    }
}

#[test]
fn answers_that_find_a_full_socket_wait_for_room() {
    let rig = HubHarness::with_loops(settings(), 1);
    let mut client = rig.hold_sealed(stream(&["a"]));
    // Fills the socket to the last byte, and some.
    while rig.hub.snapshot().backlog_bytes.used == 0 {
        rig.hub.publish(message("a", &"x".repeat(5_000))).unwrap();
        rig.run(async {});
    }
    client.send(b"???");
    rig.hub.publish(message("a", "last")).unwrap();
    while client.chunk() != "last" {}
    while client.opener.as_ref().unwrap().empty_records < 3 {
        assert!(client.read_some());
    }
    rig.until("nothing waits", |hub| {
        hub.snapshot().backlog_bytes.used == 0
    });
}

#[test]
fn the_end_of_either_side_ends_the_session() {
    let rig = HubHarness::new(settings());
    let mut client = rig.hold_sealed(stream(&["a"]));
    client.send(b"e");
    client.expect_end();
    assert!(client.opener.as_ref().unwrap().is_ended);
    rig.until("it has left", |hub| hub.snapshot().connections.used == 0);
    let mut client = rig.hold_sealed(stream(&["a"]));
    rig.hub.publish(message("a", "last")).unwrap();
    let hub = rig.hub.clone();
    rig.run(async move { hub.drain(DrainPlan::with_duration(Duration::ZERO)).await });
    assert_eq!(client.rest(), "last");
    assert!(client.opener.unwrap().is_ended);
    let rig = HubHarness::new(settings());
    let mut client = rig.hold_sealed(stream(&["a"]));
    client.send(b"broken");
    client.expect_end();
    assert!(!client.opener.unwrap().is_ended);
}

#[test]
fn a_session_goes_on_in_the_next_process() {
    let (old, new) = (HubHarness::new(settings()), HubHarness::new(settings()));
    let mut client = old.hold_sealed(stream(&["a"]));
    let mut slow = old.hold_sealed(stream(&["a"]));
    let mut plain = old.hold(stream(&["a"]));
    old.hub.publish(message("a", "one")).unwrap();
    assert_eq!(client.chunk(), "one");
    let long = "x".repeat(600 << 10);
    old.hub.publish(message("a", &long)).unwrap();
    assert_eq!(client.chunk(), long);
    old.until("some waits", |hub| hub.snapshot().backlog_bytes.used > 0);
    let moved = transfer(&old, &new, false);
    assert_eq!(moved.moved_streams(), 3);
    old.until("it is empty", |hub| {
        let now = hub.snapshot();
        now.backlog_bytes.used == 0 && now.connections.used == 0
    });
    new.hub.publish(message("a", "two")).unwrap();
    assert_eq!(client.chunk(), "two");
    for text in ["one", &long, "two"] {
        assert_eq!(slow.chunk(), text);
        assert_eq!(plain.chunk(), text);
    }
    slow.send(b"e");
    slow.expect_end();
    new.until("it has left", |hub| hub.snapshot().connections.used == 2);
    new.until("nothing waits", |hub| {
        hub.snapshot().backlog_bytes.used == 0
    });
}

#[test]
fn a_session_that_the_next_process_does_not_know_stays() {
    let (old, new) = (HubHarness::new(settings()), HubHarness::new(settings()));
    let mut client = old.hold_sealed(stream(&["a"]));
    let mut plain = old.hold(stream(&["a"]));
    let moved = transfer(&old, &new, true);
    assert_eq!(moved.moved_streams(), 1);
    old.until("it is back", |hub| hub.snapshot().connections.used == 1);
    new.hub.publish(message("a", "for both")).unwrap();
    assert_eq!(client.chunk(), "for both");
    assert_eq!(plain.chunk(), "for both");
}
