//! Held connections with a layer: what is sealed, kept and handed over.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;

use super::*;

/// Records are a length and the content with each bit inverted. A client sends content as `d`; `?`
/// is answered, `e` is its end, and `x` breaks the protocol.
#[derive(Debug, Default)]
struct FakeLayer {
    is_ended: bool,
}

const END: &[u8] = &[0, 0];

impl RecordLayer for FakeLayer {
    fn seal(&mut self, slices: &[IoSlice<'_>], out: &mut Vec<u8>) -> io::Result<()> {
        if self.is_ended {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let length: usize = slices.iter().map(|slice| slice.len()).sum();
        out.extend(u16::try_from(length).unwrap().to_be_bytes());
        let content = slices.iter().flat_map(|slice| slice.iter());
        out.extend(content.map(|byte| !byte));
        Ok(())
    }

    fn open(&mut self, bytes: &mut [u8], out: &mut Vec<u8>) -> io::Result<Option<usize>> {
        let mut content = 0;
        for byte in bytes {
            match byte {
                b'd' => content += 1,
                b'?' => out.extend([0, 1, !b'!']),
                b'e' => return Ok(None),
                _ => {
                    out.extend([0, 1, !b'X']);
                    return Err(ErrorKind::InvalidData.into());
                }
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
        Vec::new()
    }

    fn memory_bytes(&self) -> usize {
        size_of::<Self>()
    }
}

fn pair() -> (OwnedFd, UnixStream) {
    let (ours, theirs) = net::worker_socket_pair().unwrap();
    let theirs = UnixStream::from(theirs);
    theirs.set_nonblocking(true).unwrap();
    (ours, theirs)
}

fn sealed() -> (HeldConnection, UnixStream) {
    let (ours, theirs) = pair();
    let layer = Box::new(FakeLayer::default());
    (HeldConnection::sealed(ours, layer, Vec::new()), theirs)
}

/// What a client can read now.
fn received(client: &mut UnixStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Err(error) = client.read_to_end(&mut bytes) {
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    }
    bytes
}

/// The content of whole records.
fn content(mut bytes: &[u8]) -> Vec<u8> {
    let mut content = Vec::new();
    while let Some((length, rest)) = bytes.split_first_chunk() {
        let (record, rest) = rest.split_at(usize::from(u16::from_be_bytes(*length)));
        content.extend(record.iter().map(|byte| !byte));
        bytes = rest;
    }
    assert!(bytes.is_empty());
    content
}

fn kind(result: io::Result<usize>) -> ErrorKind {
    result.unwrap_err().kind()
}

#[test]
fn without_a_session_bytes_go_as_they_are() {
    let (ours, mut client) = pair();
    let mut held = HeldConnection::from(ours);
    let mut io = held.borrow_mut();
    let slices = [b"one, ", b"two, "].map(|text| IoSlice::new(text));
    assert_eq!(io.try_write(&slices).unwrap(), 10);
    assert_eq!((io.unsent_bytes(), io.flush().unwrap()), (0, true));
    client.write_all(b"dropped").unwrap();
    assert_eq!(io.discard_input(&mut [0; 64]).unwrap(), 7);
    assert_eq!(kind(io.discard_input(&mut [0; 64])), ErrorKind::WouldBlock);
    io.shutdown_write();
    assert_eq!(received(&mut client), b"one, two, ");
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
    drop(client);
    assert_eq!(io.discard_input(&mut [0; 64]).unwrap(), 0);
}

#[test]
fn with_a_session_content_is_sealed_in_chunks() {
    let (mut held, mut client) = sealed();
    let pieces: Vec<Vec<u8>> = (0..40).map(|piece| vec![piece; 500]).collect();
    let slices: Vec<_> = pieces.iter().map(|piece| IoSlice::new(piece)).collect();
    assert_eq!(held.borrow_mut().try_write(&slices).unwrap(), 20_000);
    assert_eq!(content(&received(&mut client)), pieces.concat());
    let long = vec![1; 40_000];
    let slices = [&b""[..], &long, b"", b"end"].map(IoSlice::new);
    assert_eq!(held.borrow_mut().try_write(&slices).unwrap(), 40_003);
    let bytes = received(&mut client);
    assert_eq!(content(&bytes), [&long[..], b"end"].concat());
    assert_eq!(bytes.len(), 40_003 + 3 * 2);
    assert_eq!(held.borrow_mut().try_write(&[]).unwrap(), 0);
}

#[test]
fn a_full_socket_leaves_one_chunk_waiting() {
    let (mut held, mut client) = sealed();
    let text: Vec<u8> = (0..2_000_000_u32).map(|at| at.to_be_bytes()[3]).collect();
    let mut io = held.borrow_mut();
    let (mut written, mut read) = (0, Vec::new());
    while written < text.len() {
        match io.try_write(&[IoSlice::new(&text[written..])]) {
            Ok(count) => written += count,
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                assert!(0 < io.unsent_bytes() && io.unsent_bytes() <= CHUNK_BYTES + 2);
                assert!(!io.flush().unwrap());
                read.extend(received(&mut client));
            }
        }
    }
    while !io.flush().unwrap() {
        read.extend(received(&mut client));
    }
    read.extend(received(&mut client));
    assert!(content(&read) == text);
    assert_eq!(held.records.unwrap().unsent.capacity(), 0);
}

#[test]
fn records_of_an_earlier_owner_go_first() {
    let (ours, mut client) = pair();
    let layer = Box::new(FakeLayer::default());
    let mut held = HeldConnection::sealed(ours, layer, vec![0, 1, !b'a']);
    assert_eq!(
        held.borrow_mut().try_write(&[IoSlice::new(b"b")]).unwrap(),
        1
    );
    assert_eq!(content(&received(&mut client)), b"ab");
}

#[test]
fn records_of_the_client_are_counted_and_answered() {
    let (mut held, mut client) = sealed();
    let mut io = held.borrow_mut();
    client.write_all(b"ddd??").unwrap();
    assert_eq!(io.discard_input(&mut [0; 64]).unwrap(), 3);
    assert_eq!(content(&received(&mut client)), b"!!");
    // Records without content are no end.
    client.write_all(b"??").unwrap();
    assert_eq!(kind(io.discard_input(&mut [0; 1])), ErrorKind::WouldBlock);
    assert_eq!(content(&received(&mut client)), b"!!");
    drop(client);
    assert_eq!(io.discard_input(&mut [0; 64]).unwrap(), 0);
}

#[test]
fn the_end_of_the_client_is_answered_and_ends_the_connection() {
    let (mut held, mut client) = sealed();
    let mut io = held.borrow_mut();
    client.write_all(b"de").unwrap();
    assert_eq!(
        kind(io.discard_input(&mut [0; 64])),
        ErrorKind::ConnectionAborted
    );
    assert_eq!(received(&mut client), END);
    assert_eq!(
        kind(io.try_write(&[IoSlice::new(b"late")])),
        ErrorKind::BrokenPipe
    );
}

#[test]
fn the_last_words_of_a_session_are_sent() {
    let (mut held, mut client) = sealed();
    client.write_all(b"dx").unwrap();
    let done = held.borrow_mut().discard_input(&mut [0; 64]);
    assert_eq!(kind(done), ErrorKind::InvalidData);
    assert_eq!(content(&received(&mut client)), b"X");
}

#[test]
fn a_client_that_reads_no_answers_is_ended() {
    let (mut held, mut client) = sealed();
    let mut io = held.borrow_mut();
    // Fills the socket.
    while io.unsent_bytes() == 0 {
        io.try_write(&[IoSlice::new(&[0; 9_000])]).unwrap();
    }
    let mut asked = 0;
    let error = loop {
        client.write_all(&[b'?'; 1000]).unwrap();
        asked += 1000;
        let error = io.discard_input(&mut [0; 4096]).unwrap_err();
        if error.kind() != ErrorKind::WouldBlock {
            break error;
        }
        assert!(asked < 1_000_000);
    };
    assert!(error.to_string().contains("reads no answer"), "{error}");
    assert!(io.unsent_bytes() < MAX_UNSENT_BYTES + 3 * 4096);
}

#[test]
fn a_shutdown_announces_the_end() {
    let (mut held, mut client) = sealed();
    let mut io = held.borrow_mut();
    assert_eq!(io.try_write(&[IoSlice::new(b"last")]).unwrap(), 4);
    io.shutdown_write();
    let bytes = received(&mut client);
    let (records, end) = bytes.split_at(6);
    assert_eq!((&content(records)[..], end), (&b"last"[..], END));
    assert_eq!(client.read(&mut [0]).unwrap(), 0);
}
