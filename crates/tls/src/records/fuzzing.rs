//! Two ends of a session without a handshake, and what the fuzz target `record_session` does with
//! them.
//!
//! The client's end is a [`RecordSession`] too: the record layer is the same on both sides. It seals
//! records with any content, which `rustls` as a client would not.

use std::io::IoSlice;

use rustls::{ExtractedSecrets, SupportedCipherSuite};

use super::key_schedule::{MAX_SECRET_BYTES, Secret};
use super::record_keys::{IV_BYTES, MAX_KEY_BYTES, RecordKeys};
use super::suite::RecordSuite;
use super::{
    ExtractError, MAX_RECORD_OVERHEAD, MAX_SESSION_BYTES, OpenError, OpenedBytes,
    RECORD_HEADER_BYTES, RecordSession, SealError, TrafficSecrets, content_type,
};

/// How many cipher suites [`SessionPair::new`] has.
pub const SUITE_COUNT: usize = RecordSuite::ALL.len();

/// The memory that a session may have with a partial record.
const MAX_BUSY_BYTES: usize = MAX_SESSION_BYTES + (16 << 10) + 256 + RECORD_HEADER_BYTES;

/// What the answers to one record may have.
const MAX_ANSWER_BYTES: usize = 2 * (5 + MAX_RECORD_OVERHEAD);

/// Both ends of a session.
#[derive(Debug)]
pub struct SessionPair {
    /// The end under test.
    pub server: RecordSession,
    /// Its peer.
    pub client: RecordSession,
}

impl SessionPair {
    /// A session with a cipher suite, `0..SUITE_COUNT`, and secrets made of `seed`. `None` if there
    /// is no such suite, or the library fails.
    #[must_use]
    pub fn new(suite: usize, seed: u8) -> Option<Self> {
        let suite = *RecordSuite::ALL.get(suite)?;
        let keys = |direction: u8| {
            if suite.is_tls13() {
                let secret = Secret([seed.wrapping_add(direction); MAX_SECRET_BYTES]);
                return RecordKeys::from_secret(suite, secret).ok();
            }
            let key = [seed.wrapping_add(direction); MAX_KEY_BYTES];
            let iv = [seed.wrapping_sub(direction); IV_BYTES];
            Some(RecordKeys::from_parts(1, Secret::NONE, key, iv))
        };
        Some(Self {
            server: RecordSession::from_keys(suite, keys(1)?, keys(2)?),
            client: RecordSession::from_keys(suite, keys(2)?, keys(1)?),
        })
    }

    /// A record of the client with this content type, whatever it says.
    ///
    /// # Errors
    /// As [`RecordSession::seal`].
    pub fn seal_as_client(&mut self, content: u8, message: &[u8]) -> Result<Vec<u8>, SealError> {
        self.client.seal_any(content, message)
    }
}

impl RecordSession {
    /// The client's side of a session, of what rustls' client extracted.
    pub(crate) fn new_client(
        suite: SupportedCipherSuite,
        extracted: &ExtractedSecrets,
        traffic: Option<TrafficSecrets>,
    ) -> Result<Self, ExtractError> {
        let traffic = traffic.map(|TrafficSecrets { client, server }| TrafficSecrets {
            client: server,
            server: client,
        });
        Self::new(suite, extracted, traffic.as_ref())
    }

    /// A record with this content type, whatever it says.
    pub(crate) fn seal_any(&mut self, content: u8, message: &[u8]) -> Result<Vec<u8>, SealError> {
        let mut out = Vec::new();
        self.seal_small(content, message, &mut out)?;
        // The peer goes on with the key that is announced.
        let is_update =
            content == content_type::HANDSHAKE && matches!(message, [24, 0, 0, 1, 0 | 1]);
        if is_update && self.suite.is_tls13() {
            self.send_keys.advance(self.suite)?;
        }
        Ok(out)
    }
}

/// Does what `data` says with a session of every kind, and asserts what holds for every input.
pub fn run_operations(data: &[u8]) {
    let Some((&[suite, seed], data)) = data.split_first_chunk() else {
        return;
    };
    let Some(mut pair) = SessionPair::new(usize::from(suite) % SUITE_COUNT, seed) else {
        return;
    };
    let mut rest = data;
    while let Some((&[operation, length, piece], behind)) = rest.split_first_chunk() {
        let (argument, behind) = behind.split_at(behind.len().min(usize::from(length)));
        rest = behind;
        match operation % 7 {
            0 => send_to_client(&mut pair, argument),
            1 => {
                let content = argument.first().copied().unwrap_or(0);
                let message = argument.get(1..).unwrap_or_default();
                if let Ok(record) = pair.seal_as_client(content, message) {
                    send_to_server(&mut pair, &record, piece);
                }
            }
            2 => send_to_server(&mut pair, argument, piece),
            3 => pair.server = copy_session(&pair.server),
            4 => {
                let mut out = Vec::new();
                pair.server.close_notify(&mut out);
                let _ = pair.client.open(&mut out, &mut Vec::new());
            }
            6 => pair.server.release_keys(),
            _ => {
                let _ = RecordSession::from_bytes(argument).map(|it| it.memory_bytes());
                let mut bytes = pair.server.to_bytes();
                if let (Some(byte), Some(mask)) =
                    (bytes.get_mut(usize::from(piece)), argument.first())
                {
                    *byte ^= mask;
                }
                let _ = RecordSession::from_bytes(&bytes).map(|it| it.memory_bytes());
            }
        }
    }
}

/// What the server seals, the client opens whole.
fn send_to_client(pair: &mut SessionPair, data: &[u8]) {
    let mut out = Vec::new();
    let sealed = pair.server.seal(&[IoSlice::new(data)], &mut out);
    assert_eq!(sealed.is_ok(), pair.server.can_send());
    assert!(out.len() <= data.len() + 2 * MAX_RECORD_OVERHEAD + 5);
    if sealed.is_ok()
        && let Ok(opened) = pair.client.open(&mut out, &mut Vec::new())
    {
        assert!(opened.is_ended || opened.data_bytes == data.len());
    }
}

/// The server says the same for every split, keeps no more than a record, and is dead behind an
/// error.
fn send_to_server(pair: &mut SessionPair, bytes: &[u8], piece: u8) {
    open_records(&pair.server, bytes);
    let mut in_pieces = copy_session(&pair.server);
    let whole = open_in_pieces(&mut pair.server, bytes, bytes.len().max(1));
    let pieces = open_in_pieces(&mut in_pieces, bytes, usize::from(piece).max(1));
    assert_eq!(whole, pieces);
    assert_eq!(pair.server.to_bytes(), in_pieces.to_bytes());
    let server = &mut pair.server;
    assert!(server.memory_bytes() <= MAX_BUSY_BYTES);
    let (result, mut answers) = whole;
    let records = bytes.len().div_ceil(RECORD_HEADER_BYTES + 16) + 1;
    assert!(answers.len() <= records * MAX_ANSWER_BYTES);
    if result.is_err() {
        assert!(!server.can_send() && !server.can_receive());
        assert_eq!(
            server.open(&mut [0], &mut Vec::new()),
            Err(OpenError::Closed)
        );
    }
    let _ = pair.client.open(&mut answers, &mut Vec::new());
}

/// Whole records say the same as the same bytes in pieces, where nothing is wrong with them.
fn open_records(server: &RecordSession, bytes: &[u8]) {
    let (mut by_record, mut by_bytes) = (copy_session(server), copy_session(server));
    if by_record.memory_bytes() > size_of::<RecordSession>() {
        // It is held: it keeps the start of a record itself.
        return;
    }
    let (mut bytes, mut answers, mut data_bytes) = (bytes.to_vec(), Vec::new(), 0);
    let mut received = bytes.clone();
    let opened = by_bytes.open(&mut received, &mut Vec::new());
    let used = by_record.open_records(&mut bytes, &mut answers, &mut |data| {
        data_bytes += data.len();
    });
    let Ok(opened) = opened else {
        return;
    };
    assert_eq!(data_bytes, opened.data_bytes);
    assert_eq!(by_record.can_receive(), by_bytes.can_receive());
    let used = used.expect("records that opened once");
    assert!(bytes.len() - used <= MAX_BUSY_BYTES && by_record.memory_bytes() <= MAX_SESSION_BYTES);
}

fn open_in_pieces(
    session: &mut RecordSession,
    bytes: &[u8],
    piece: usize,
) -> (Result<OpenedBytes, OpenError>, Vec<u8>) {
    let mut all = OpenedBytes {
        data_bytes: 0,
        is_ended: !session.can_receive(),
    };
    let mut answers = Vec::new();
    for piece in bytes.chunks(piece) {
        match session.open(&mut piece.to_vec(), &mut answers) {
            Ok(OpenedBytes {
                data_bytes,
                is_ended,
            }) => {
                all.data_bytes += data_bytes;
                all.is_ended = is_ended;
            }
            Err(error) => return (Err(error), answers),
        }
    }
    (Ok(all), answers)
}

/// The same session, as another process has it.
fn copy_session(session: &RecordSession) -> RecordSession {
    let bytes = session.to_bytes();
    let copy = RecordSession::from_bytes(&bytes);
    let Ok(copy) = copy else {
        panic!("the bytes of a session are none: {copy:?}");
    };
    assert_eq!(copy.to_bytes(), bytes);
    copy
}
